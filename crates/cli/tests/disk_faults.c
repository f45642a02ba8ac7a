/* A disk that fails: stands between the program and its positioned reads of experts.
 *
 * FAULT names what happens to every FAULT_EVERYth read from the FAULT_FROMth on: eio, end, short,
 * flip, torn, slow; gone fails all reads for FAULT_MS milliseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

typedef ssize_t (*reader)(int, void *, size_t, off_t);

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int is_experts(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) {
        return 0;
    }
    path[length] = 0;
    return strstr(path, "/experts-") != NULL;
}

static long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static ssize_t through(reader real, int fd, void *buffer, size_t size, off_t at) {
    static long count, since;
    const char *fault = getenv("FAULT");
    if (!fault || !is_experts(fd)) {
        return real(fd, buffer, size, at);
    }
    long turn = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST) - number("FAULT_FROM", 1);
    if (turn < 0 || turn % number("FAULT_EVERY", 1)) {
        return real(fd, buffer, size, at);
    }
    if (!strcmp(fault, "gone")) {
        long now = milliseconds(), zero = 0;
        __atomic_compare_exchange_n(&since, &zero, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        if (now - since < number("FAULT_MS", 0)) {
            errno = EIO;
            return -1;
        }
        return real(fd, buffer, size, at);
    }
    if (!strcmp(fault, "eio")) {
        errno = EIO;
        return -1;
    }
    if (!strcmp(fault, "end")) {
        return 0;
    }
    if (!strcmp(fault, "short") && size > 8192) {
        size = size / 2 / 4096 * 4096;
    }
    if (!strcmp(fault, "slow")) {
        usleep(100000);
    }
    ssize_t done = real(fd, buffer, size, at);
    if (done > 1 && !strcmp(fault, "flip")) {
        ((char *)buffer)[done / 3] ^= 4;
    }
    if (done > 1 && !strcmp(fault, "torn")) {
        memset((char *)buffer + done / 2, 0, (size_t)(done - done / 2));
    }
    return done;
}

ssize_t pread64(int fd, void *buffer, size_t size, off_t at) {
    static reader real;
    if (!real) {
        real = (reader)dlsym(RTLD_NEXT, "pread64");
    }
    return through(real, fd, buffer, size, at);
}

ssize_t pread(int fd, void *buffer, size_t size, off_t at) {
    return pread64(fd, buffer, size, at);
}

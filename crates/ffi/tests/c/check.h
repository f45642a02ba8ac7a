/* What the suites check with: the first thing that does not hold ends the program. */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char error[256];

#define CHECK(holds)                                                                        \
    do {                                                                                    \
        if (!(holds)) {                                                                     \
            fprintf(stderr, "%s:%d: does not hold: %s (error: %s)\n", __FILE__, __LINE__,   \
                    #holds, error);                                                         \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

/* A call that succeeds, and one that is refused with a text. */
#define OK(call)                                                                            \
    do {                                                                                    \
        error[0] = 0;                                                                       \
        CHECK((call) == 0);                                                                 \
    } while (0)
#define REFUSED(call)                                                                       \
    do {                                                                                    \
        error[0] = 0;                                                                       \
        CHECK((call) == -1);                                                                \
        CHECK(error[0] != 0 && memchr(error, 0, sizeof error));                             \
    } while (0)

/* The error buffer of a call. */
#define ERROR error, sizeof error

#endif

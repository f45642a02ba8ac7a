//! How much memory the control groups leave this process.

/// One of the two interfaces of the kernel.
struct Version {
    /// Where the groups of the memory controller are.
    root: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// The field of `memory.stat` that counts page cache.
    cache: &'static str,
}

const V1: Version = Version {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: "total_cache",
};

const V2: Version = Version {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    cache: "file",
};

/// Bytes left under the tightest limit of this process's group and those above it, page cache
/// counted as reclaimable; `None` where nothing limits it.
pub(crate) fn available() -> Option<u64> {
    left(&|path| std::fs::read_to_string(path).ok())
}

fn left(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let limits = [&V2, &V1].into_iter().flat_map(|version| {
        let groups = groups(version.path_in(&own));
        groups.map(|group| version.left_in(group, read))
    });
    limits.flatten().min()
}

impl Version {
    /// The path of the process's group in `/proc/self/cgroup`, lines of `number:controllers:path`;
    /// the root's where there is none.
    fn path_in<'a>(&self, own: &'a str) -> &'a str {
        let line = own.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let ours = match self.limit == V2.limit {
                true => number == "0" && controllers.is_empty(),
                false => controllers.split(',').any(|name| name == "memory"),
            };
            ours.then_some(path)
        });
        line.unwrap_or("/")
    }

    /// Bytes left in one group; `None` where it has no limit, or cannot be seen from here.
    fn left_in(&self, group: &str, read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
        let file = |name: &str| read(&format!("{}{group}/{name}", self.root));
        let number = |name: &str| file(name)?.trim().parse::<u64>().ok();
        let limit = number(self.limit)?;
        let stat = file("memory.stat").unwrap_or_default();
        let cache = stat.lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            (name == self.cache).then_some(value.trim().parse::<u64>().ok()?)
        });
        let used = number(self.usage).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
    }
}

/// A group and those above it, up to the root, which is empty. A path that leads out of what this
/// process sees says nothing of where its group is mounted: only the root is left.
fn groups(path: &str) -> impl Iterator<Item = &str> {
    let inside = path.starts_with('/') && path.split('/').all(|name| name != "..");
    let path = if inside {
        path.trim_end_matches('/')
    } else {
        ""
    };
    std::iter::successors(Some(path), |path| Some(path.rsplit_once('/')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_of(files: &[(&str, &str)]) -> Option<u64> {
        left(&|path| {
            let file = files.iter().find(|(name, _)| *name == path);
            file.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn groups_end_at_the_root() {
        let all = |path| groups(path).collect::<Vec<_>>();
        assert_eq!(all("/a.slice/b"), ["/a.slice/b", "/a.slice", ""]);
        assert_eq!(all("/"), [""]);
        assert_eq!(all("/../../b"), [""]);
        assert_eq!(all(""), [""]);
    }

    #[test]
    fn the_second_version_is_read_in_the_own_group() {
        let files = [
            ("/proc/self/cgroup", "0::/user.slice/shell.scope\n"),
            ("/sys/fs/cgroup/user.slice/shell.scope/memory.max", "1000\n"),
            (
                "/sys/fs/cgroup/user.slice/shell.scope/memory.current",
                "700\n",
            ),
            (
                "/sys/fs/cgroup/user.slice/shell.scope/memory.stat",
                "anon 400\nfile_mapped 50\nfile 300\n",
            ),
            ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ];
        assert_eq!(left_of(&files), Some(600));
        // A limit above it is tighter.
        let mut parent = files.to_vec();
        parent[4].1 = "900\n";
        parent.push(("/sys/fs/cgroup/user.slice/memory.current", "850\n"));
        assert_eq!(left_of(&parent), Some(50));
    }

    #[test]
    fn the_first_version_is_found_among_its_controllers() {
        let files = [
            (
                "/proc/self/cgroup",
                "12:cpu,cpuacct:/x\n4:memory:/docker/ab:c\n0::/system.slice\n",
            ),
            (
                "/sys/fs/cgroup/memory/docker/ab:c/memory.limit_in_bytes",
                "500\n",
            ),
            (
                "/sys/fs/cgroup/memory/docker/ab:c/memory.usage_in_bytes",
                "200\n",
            ),
            (
                "/sys/fs/cgroup/memory/docker/ab:c/memory.stat",
                "cache 10\ntotal_cache 120\n",
            ),
            (
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ];
        assert_eq!(left_of(&files), Some(420));
    }

    #[test]
    fn a_group_mounted_at_the_root_is_found_there() {
        // In a container the path may be the host's, and the files are those of the root.
        let files = [
            ("/proc/self/cgroup", "4:memory:/docker/abc\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "600\n"),
        ];
        assert_eq!(left_of(&files), Some(0));
        assert_eq!(left_of(&files[1..]), Some(0));
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(left_of(&[]), None);
        assert_eq!(left_of(&[("/proc/self/cgroup", "garbage\n0:\n")]), None);
        let unlimited = [
            ("/proc/self/cgroup", "0::/a\n"),
            ("/sys/fs/cgroup/a/memory.max", "max\n"),
        ];
        assert_eq!(left_of(&unlimited), None);
    }
}

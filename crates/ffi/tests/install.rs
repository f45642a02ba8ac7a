//! `install.sh` puts everything where a C program finds it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{SYSTEM, crate_dir, library_dir, succeed};
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = "\
#include <lamella.h>
#include <segment_adapters.h>
#include <edge_adapters.h>
#include <stdio.h>
int main(void) {
    if (coli_olmoe_segment_adapter_register() || coli_olmoe_edge_adapter_register()) return 1;
    puts(lamella_version());
    return 0;
}
";

/// What pkg-config says, or, where it is not there, what the file says.
fn flags(lib: &Path, prefix: &Path, private: bool) -> Vec<String> {
    let file = lib.join("pkgconfig/lamella.pc");
    let mut call = Command::new("pkg-config");
    call.args(["--cflags", "--libs"])
        .args(private.then_some("--static"))
        .arg("lamella")
        .env("PKG_CONFIG_PATH", file.parent().unwrap());
    let said = match call.output() {
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{error}");
            String::from_utf8(output.stdout).unwrap()
        }
        Err(_) => {
            println!("there is no pkg-config: the flags are read from lamella.pc");
            let text = std::fs::read_to_string(file).unwrap();
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().to_owned()
            };
            let more = if private {
                field("Libs.private:")
            } else {
                String::new()
            };
            format!("{} {} {more}", field("Cflags:"), field("Libs:"))
                .replace("${includedir}", "${prefix}/include")
                .replace("${libdir}", "${prefix}/lib")
                .replace("${prefix}", prefix.to_str().unwrap())
        }
    };
    said.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn nothing_is_installed_where_there_is_no_library() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    let mut call = Command::new("sh");
    call.arg(crate_dir().join("install.sh")).arg(&prefix);
    let refused = call.arg(dir.path()).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("no liblamella.a in"), "{said}");
    assert!(!prefix.exists());
}

#[test]
fn a_program_is_built_against_what_was_installed() {
    let dir = tempfile::tempdir().unwrap();
    let (prefix, source) = (dir.path().join("of lamella & co"), dir.path().join("p.c"));
    let plain = dir.path().join("plain");
    std::fs::write(&source, PROGRAM).unwrap();
    let install = |prefix: &Path| {
        let mut call = Command::new("sh");
        call.arg(crate_dir().join("install.sh")).arg(prefix);
        succeed(call.arg(library_dir()))
    };
    install(&prefix);
    let text = std::fs::read_to_string(prefix.join("lib/pkgconfig/lamella.pc")).unwrap();
    assert!(
        text.contains(&format!("prefix={}\n", prefix.display())),
        "{text}"
    );
    assert!(
        text.contains(&format!("Version: {}\n", env!("CARGO_PKG_VERSION"))),
        "{text}"
    );
    // Twice, as an upgrade does.
    install(&plain);
    install(&plain);
    let lib = plain.join("lib");
    let version = env!("CARGO_PKG_VERSION");
    for (link, to) in [
        ("liblamella.so", "liblamella.so.0".to_owned()),
        ("liblamella.so.0", format!("liblamella.so.{version}")),
    ] {
        assert_eq!(std::fs::read_link(lib.join(link)).unwrap(), Path::new(&to));
    }

    // Shared: the program asks for the name with the version of the interface.
    let shared = dir.path().join("shared");
    let mut call = Command::new("cc");
    call.arg(&source).arg("-o").arg(&shared);
    succeed(call.args(flags(&lib, &plain, false)));
    std::fs::remove_file(lib.join("liblamella.so")).unwrap();
    let said = succeed(Command::new(&shared).env("LD_LIBRARY_PATH", &lib)).stdout;
    assert_eq!(String::from_utf8(said).unwrap().trim(), version);
    std::fs::remove_file(lib.join("liblamella.so.0")).unwrap();
    let without = Command::new(&shared).env("LD_LIBRARY_PATH", &lib).output();
    assert!(!without.unwrap().status.success());

    // Static: only the archive is left.
    let fixed = dir.path().join("static");
    let mut call = Command::new("cc");
    call.arg(&source).arg("-o").arg(&fixed);
    succeed(call.args(flags(&lib, &plain, true)).args(SYSTEM));
    let said = succeed(&mut Command::new(&fixed)).stdout;
    assert_eq!(String::from_utf8(said).unwrap().trim(), version);
}

//! Names the shared library by the version of its interface, so that programs find the one they
//! were linked with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liblamella.so.0");
    }
}

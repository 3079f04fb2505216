//! Paths of the repository and of the real parts.

use crate::process::printed;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> &'static Path {
    let bed = Path::new(env!("CARGO_MANIFEST_DIR"));
    bed.parent().expect("the bed is a folder of the repository")
}

/// The folder of the binaries of these parts, which are built if they are missing; without names
/// those that every cluster needs.
pub fn parts(names: &[&str]) -> PathBuf {
    let built = std::process::Command::new(root().join("bed/build"))
        .args(names)
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("bed/build can be run");
    assert!(built.status.success(), "bed/build failed");
    let path = String::from_utf8(built.stdout).expect("a path");
    PathBuf::from(path.trim())
}

/// The folder of KEDA's sources, of which its parts are built.
pub fn keda_sources() -> PathBuf {
    sources("keda", "github.com/kedacore/keda/v2")
}

/// The folder of podinfo's sources, of which its parts are built, with its chart.
pub fn podinfo_sources() -> PathBuf {
    sources("podinfo", "github.com/stefanprodan/podinfo")
}

/// The folder of the sources of a module that a part is built of.
fn sources(part: &str, module: &str) -> PathBuf {
    let list = ["list", "-m", "-f", "{{.Dir}}", module];
    let folder = root().join("bed/parts").join(part);
    let list = std::process::Command::new("go").args(list).current_dir(folder).output();
    PathBuf::from(printed(&list.expect("go can be run")).expect("the module").trim())
}

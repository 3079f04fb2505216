//! The images of what runs beside Plimsoll, made of the parts.

use image::{Archive, Compression, Definition, File};
use std::path::{Path, PathBuf};

/// The name of an image, the part that it runs, and its first arguments.
pub type Image = (&'static str, &'static str, &'static [&'static str]);

const IMAGES: [Image; 5] = [
    ("localhost/pause:1", "pods", &["pause"]),
    ("localhost/app:1", "pods", &["serve"]),
    ("localhost/coredns:1", "coredns", &[]),
    ("localhost/prometheus:1", "prometheus", &[]),
    ("localhost/prometheus-adapter:1", "prometheus-adapter", &[]),
];

/// The image of Plimsoll, which `make image` writes.
pub const PRODUCT: &str = "plimsoll:0.1.0";
/// The same by another tag, to which it is rolled out.
pub const NEXT: &str = "plimsoll:next";

/// The image that holds the namespaces of each pod.
pub const PAUSE: &str = IMAGES[0].0;

/// Writes the archives of the images into a folder, and returns their paths.
pub fn write(parts: &Path, folder: &Path) -> Vec<PathBuf> {
    IMAGES.iter().map(|image| write_one(parts, folder, image, &[])).collect()
}

/// Writes the archive of an image that has a part and is started with these arguments, beside other parts at these
/// paths. Returns its path.
pub fn write_one(
    parts: &Path,
    folder: &Path,
    (name, program, arguments): &Image,
    others: &[(&str, &str)],
) -> PathBuf {
    let binary = parts.join(program);
    let path = format!("/{program}");
    let definition = Definition {
        entrypoint: [&*path].iter().chain(*arguments).map(|&word| word.to_owned()).collect(),
        user: "65534:65534".to_owned(),
        ..Definition::default()
    };
    let mut files = vec![file(path, &binary)];
    files.extend(others.iter().map(|(path, part)| file((*path).to_owned(), &parts.join(part))));
    files.extend(libraries(&binary).into_iter().map(|path| file(path.clone(), Path::new(&path))));
    let archive = Archive {
        name,
        architecture: if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        created: 0,
        compression: Compression::none(),
        definition: &definition,
        files,
    };
    let to = folder.join(format!("{}.tar", name.replace(['/', ':'], "-")));
    let output = std::fs::File::create(&to).expect("a file");
    archive.write(output).unwrap_or_else(|error| panic!("{name}: {error}"));
    to
}

fn file(path: String, from: &Path) -> File {
    let content = std::fs::read(from).unwrap_or_else(|error| panic!("{path}: {error}"));
    File { path, executable: true, content }
}

/// The shared libraries of a program, none if it is static.
fn libraries(program: &Path) -> Vec<String> {
    let done = std::process::Command::new("ldd").arg(program).output().expect("ldd can be run");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

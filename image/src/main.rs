//! `make image`: the image of the product, as `deploy/image.json` says, around a static binary.
//!
//! Usage: `image BINARY NAME:TAG ARCHIVE`, in the root of the repository. `SOURCE_DATE_EPOCH` is the time
//! of the image, `SOURCE` the URL of its sources and `REVISION` their commit. Without them its labels are of
//! the repository, whatever the binary is: the last commit and its time, and git's `origin` without its
//! credentials.

use image::{
    Archive, Compression, Definition, File, architecture_of, root_certificates, source_url,
};
use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

fn main() -> ExitCode {
    match run() {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("image: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [binary, name, archive] = &arguments[..] else {
        return Err("usage: image BINARY NAME:TAG ARCHIVE".into());
    };
    let mut definition: Definition = serde_json::from_slice(&read("deploy/image.json")?)?;
    let program = read(binary)?;
    let architecture = architecture_of(&program).map_err(|why| {
        format!("{binary}: {why}; build it by `make image` on Linux, or use the Dockerfile")
    })?;
    let mut files = Vec::new();
    for (path, what) in &definition.files {
        let (executable, content) = match what.as_str() {
            "program" => (true, program.clone()),
            "root certificates" => (false, root_certificates().into_bytes()),
            other => return Err(format!("deploy/image.json: {path}: {other}?").into()),
        };
        files.push(File { path: path.clone(), executable, content });
    }
    let created = match env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds,
        Err(_) => git(&["log", "-1", "--format=%ct"])
            .map_err(|why| format!("set SOURCE_DATE_EPOCH: git has no commit here: {why}"))?,
    };
    let created =
        created.parse().map_err(|error| format!("SOURCE_DATE_EPOCH={created}: {error}"))?;
    let revision = match env::var("REVISION").ok().filter(|given| !given.is_empty()) {
        Some(given) => Some(given),
        None => {
            let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_ok();
            let dirty = if changed { "-dirty" } else { "" };
            match git(&["rev-parse", "HEAD"]) {
                Err(why) if Path::new(".git").exists() => return Err(why.into()),
                revision => revision.ok().map(|commit| commit + dirty),
            }
        }
    };
    let tag = name.rsplit_once(':').map(|(_, tag)| tag.to_owned());
    // A variable of CI may have credentials, too. The error does not repeat it.
    let source = match env::var("SOURCE").ok().filter(|given| !given.is_empty()) {
        Some(given) => {
            Some(source_url(&given).ok_or("SOURCE is no URL such as https://HOST/OWNER/NAME")?)
        }
        None => git(&["remote", "get-url", "origin"]).ok().and_then(|url| source_url(&url)),
    };
    let labels = [
        ("version", Some(tag.ok_or("NAME:TAG has no tag")?)),
        ("revision", revision),
        ("source", source),
        ("created", Some(jiff::Timestamp::from_second(i64::from(created))?.to_string())),
    ];
    for (label, value) in labels {
        let value = value.filter(|value| !value.is_empty());
        definition
            .labels
            .extend(value.map(|value| (format!("org.opencontainers.image.{label}"), value)));
    }
    let mut bytes = Vec::new();
    let image = Archive {
        name,
        architecture,
        created,
        compression: Compression::best(),
        definition: &definition,
        files,
    };
    let digest = image.write(&mut bytes)?;
    fs::write(archive, &bytes).map_err(|error| format!("{archive}: {error}"))?;
    Ok(format!("{archive}: {name}, {digest}, {:.1} MB", bytes.len() as f64 / 1e6))
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{path}: {error}"))
}

/// The output of git without its last line break.
///
/// # Errors
/// What git says where it fails; nothing where it says nothing.
fn git(arguments: &[&str]) -> Result<String, String> {
    let done = Command::new("git").args(arguments).output();
    let done = done.map_err(|error| format!("git can't be run: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match text(&done.stdout) {
        said if done.status.success() && !said.is_empty() => Ok(said),
        _ => Err(text(&done.stderr)),
    }
}

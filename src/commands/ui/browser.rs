//! Opens the page in the browser.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that opens a file as a double click does.
const OPENER: &str = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };

/// A file that leads to the page; it is removed when this is dropped.
pub struct Redirect(PathBuf);

impl Drop for Redirect {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens the address in the user's browser. The command line of a browser can be read by other users of this
/// machine, so that it has not the address with its key, but a file of this user that leads there.
///
/// # Errors
/// If there is no program that opens files, or the file can't be written.
pub fn open(address: &str) -> std::io::Result<Redirect> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = folder.filter(|folder| folder.is_dir()).unwrap_or_else(std::env::temp_dir);
    let redirect = write(&folder, address)?;
    let null = Stdio::null;
    let mut command = Command::new(OPENER);
    command.arg(&redirect.0).stdin(null()).stdout(null()).stderr(null());
    command
        .spawn()
        .map_err(|error| std::io::Error::new(error.kind(), format!("{OPENER}: {error}")))?;
    Ok(redirect)
}

fn write(folder: &Path, address: &str) -> std::io::Result<Redirect> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join(format!("plimsoll-ui-{}.html", std::process::id()));
    // What is left of an earlier process of this id.
    let _ = std::fs::remove_file(&path);
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
    let redirect = Redirect(path);
    writeln!(
        file,
        "<!doctype html><title>Plimsoll</title><meta http-equiv=\"refresh\" content=\"0;url={address}\">\
         <a href=\"{address}\">Plimsoll</a>"
    )?;
    Ok(redirect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn only_the_user_reads_the_file_with_the_key_and_it_goes_with_the_page() {
        let folder = tempfile::tempdir().unwrap();
        let redirect = write(folder.path(), "http://127.0.0.1:1/#key=abc").unwrap();
        let path = redirect.0.clone();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(&path).unwrap().contains("#key=abc"));
        drop(redirect);
        assert!(!path.exists());
    }
}

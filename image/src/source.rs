//! The URL of the sources, as an image names it.

/// The URL of the sources behind a URL of git, which is https. It has no credentials, query or fragment, no `.git`
/// and no user of ssh: clones of a repository have the same one, and no token gets into an image. `None` for paths of
/// a machine, and for what is no URL of git.
pub fn source_url(remote: &str) -> Option<String> {
    let (location, path) = match remote.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/')?;
            let location = authority.rsplit('@').next()?;
            let host = location.split_once(':').map_or(location, |(host, _)| host);
            match scheme {
                "https" => (location, path),
                // Their ports are not that of https.
                "http" | "ssh" | "git" | "git+ssh" => (host, path),
                _ => return None,
            }
        }
        // As ssh has it: user@host:path. A slash before the colon is a path of the machine.
        None => {
            let (host, path) = remote.split_once(':').filter(|(host, _)| !host.contains('/'))?;
            (host.rsplit('@').next()?, path.trim_start_matches('/'))
        }
    };
    // A password with a slash would be read as the path, whatever else it has.
    let is_password = path.contains('@');
    let path = path.split(['?', '#']).next()?.trim_end_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    let (host, port) = location.split_once(':').unwrap_or((location, "443"));
    let is_host = !host.is_empty()
        && host.chars().all(|one| one.is_ascii_alphanumeric() || "-.".contains(one));
    let is_port = !port.is_empty() && port.chars().all(|one| one.is_ascii_digit());
    let is_path = !path.is_empty() && !is_password && !path.contains([':', '\\']);
    (is_host && is_port && is_path).then(|| format!("https://{location}/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_credentials_get_into_the_url_of_the_sources() {
        for remote in [
            "https://gitlab-ci-token:SECRET@example.com/team/plimsoll.git",
            "https://SECRET@example.com/team/plimsoll",
            "https://user:SEC@RET@example.com/team/plimsoll.git",
            "https://example.com/team/plimsoll.git?private_token=SECRET",
            "https://example.com/team/plimsoll#SECRET",
            "ssh://SECRET@example.com:2222/team/plimsoll.git",
            "SECRET@example.com:team/plimsoll.git",
        ] {
            let url = source_url(remote);
            assert_eq!(url.as_deref(), Some("https://example.com/team/plimsoll"), "{remote}");
        }
        for remote in [
            "https://user:SEC/RET@example.com/team/plimsoll.git",
            "https://user:1/RET@example.com/team/plimsoll.git",
            "https://user:1/SE#CRET@example.com/team/plimsoll.git",
            "https://user:1/SE?CRET@example.com/team/plimsoll.git",
            "user:SECRET@example.com:team/plimsoll.git",
        ] {
            assert_eq!(source_url(remote), None, "{remote}");
        }
    }

    #[test]
    fn clones_of_a_repository_have_the_same_url() {
        for remote in [
            "https://example.com/team/plimsoll",
            "https://example.com/team/plimsoll.git",
            "https://example.com/team/plimsoll/",
            "git@example.com:team/plimsoll.git",
            "example.com:/team/plimsoll.git",
            "ssh://git@example.com/team/plimsoll.git",
            "git://example.com/team/plimsoll.git",
            "http://example.com:8080/team/plimsoll.git",
        ] {
            let url = source_url(remote);
            assert_eq!(url.as_deref(), Some("https://example.com/team/plimsoll"), "{remote}");
        }
        let with_port = source_url("https://example.com:8443/team/plimsoll.git");
        assert_eq!(with_port.as_deref(), Some("https://example.com:8443/team/plimsoll"));
    }

    #[test]
    fn a_path_of_the_machine_is_no_url_of_sources() {
        for remote in [
            "/srv/git/plimsoll.git",
            "../plimsoll",
            "./a:b",
            "file:///srv/git/plimsoll",
            "",
            "https://example.com",
            "https:///plimsoll",
            r"C:\plimsoll",
        ] {
            assert_eq!(source_url(remote), None, "{remote}");
        }
    }
}

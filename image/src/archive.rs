//! Writes the archive of an image.

use crate::Definition;
pub use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

/// A file of an image; root owns it, and everyone may read it.
pub struct File {
    /// Its absolute path in the image.
    pub path: String,
    /// Whether it is a program.
    pub executable: bool,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// An image of one layer that is to be written.
pub struct Archive<'a> {
    /// Its name with a tag, such as `plimsoll:0.1.0` or `localhost/app:1`.
    pub name: &'a str,
    /// Its architecture, by Go's name of it.
    pub architecture: &'a str,
    /// The time of the image and of all that is in it, in seconds since 1970.
    pub created: u32,
    /// How much its layer is compressed.
    pub compression: Compression,
    /// User, entry point, labels.
    pub definition: &'a Definition,
    /// Its files.
    pub files: Vec<File>,
}

/// The files of the layout, by their paths in the archive.
type Blobs = BTreeMap<String, Vec<u8>>;

impl Archive<'_> {
    /// Writes the archive, and returns the digest of the image's manifest.
    ///
    /// # Errors
    /// Where the archive can't be written, or the path of a file is too long for one.
    pub fn write(&self, to: impl Write) -> io::Result<String> {
        let layer = self.layer()?;
        let mut compressed = GzEncoder::new(Vec::new(), self.compression);
        compressed.write_all(&layer)?;
        let compressed = compressed.finish()?;
        let created = jiff::Timestamp::from_second(self.created.into()).expect("a time after 1970");
        let definition = self.definition;
        let empty = |names: &[String]| -> Value {
            names.iter().map(|name| (name.clone(), json!({}))).collect()
        };
        let config = json!({
            "architecture": self.architecture,
            "os": "linux",
            "created": created.to_string(),
            "config": {
                "User": definition.user,
                "ExposedPorts": empty(&definition.exposed_ports),
                "Env": ["PATH=/"],
                "Entrypoint": definition.entrypoint,
                "WorkingDir": "/",
                "Labels": definition.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
            "history": [{"created": created.to_string(), "created_by": "make image"}],
        });
        let mut blobs = Blobs::new();
        let config = blob(&mut blobs, "config.v1+json", config.to_string().into_bytes());
        let layer = blob(&mut blobs, "layer.v1.tar+gzip", compressed);
        // Docker before 25 knows no layout: it reads this list.
        let names = |descriptor: &Value| path_of(descriptor["digest"].as_str().expect("a digest"));
        let docker = json!([{
            "Config": names(&config), "RepoTags": [self.name], "Layers": [names(&layer)],
        }]);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [layer],
            "annotations": definition.labels,
        });
        let mut manifest = blob(&mut blobs, "manifest.v1+json", manifest.to_string().into_bytes());
        let digest = manifest["digest"].as_str().expect("a digest").to_owned();
        manifest["platform"] = json!({"architecture": self.architecture, "os": "linux"});
        manifest["annotations"] = json!({
            "io.containerd.image.name": full_name(self.name),
            "org.opencontainers.image.ref.name": self.name.rsplit(':').next(),
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        blobs.insert("index.json".to_owned(), index.to_string().into_bytes());
        blobs.insert("manifest.json".to_owned(), docker.to_string().into_bytes());
        let version = json!({"imageLayoutVersion": "1.0.0"}).to_string();
        blobs.insert("oci-layout".to_owned(), version.into_bytes());
        let mut archive = tar::Builder::new(to);
        for (path, content) in &blobs {
            self.append(&mut archive, path, 0o644, content)?;
        }
        archive.into_inner()?.flush()?;
        Ok(digest)
    }

    /// The files as a tar, each after its folders, in the order of their paths.
    fn layer(&self) -> io::Result<Vec<u8>> {
        let mut layer = tar::Builder::new(Vec::new());
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by_key(|file| &file.path);
        let mut folders = BTreeSet::new();
        for file in files {
            let path = file.path.trim_start_matches('/');
            let above: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
            for folder in above.into_iter().rev().filter(|folder| *folder != Path::new("")) {
                if folders.insert(folder) {
                    let path = format!("{}/", folder.display());
                    self.append(&mut layer, &path, 0o755, &[])?;
                }
            }
            let mode = if file.executable { 0o755 } else { 0o644 };
            self.append(&mut layer, path, mode, &file.content)?;
        }
        layer.into_inner()
    }

    fn append(
        &self,
        archive: &mut tar::Builder<impl Write>,
        path: &str,
        mode: u32,
        content: &[u8],
    ) -> io::Result<()> {
        let folder = path.ends_with('/');
        let mut header = tar::Header::new_ustar();
        header.set_path(path)?;
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.created.into());
        header.set_size(content.len() as u64);
        let kind = if folder { tar::EntryType::Directory } else { tar::EntryType::Regular };
        header.set_entry_type(kind);
        header.set_cksum();
        archive.append(&header, content)
    }
}

/// Adds a blob and returns its descriptor.
fn blob(blobs: &mut Blobs, kind: &str, content: Vec<u8>) -> Value {
    let digest = digest(&content);
    let size = content.len();
    blobs.insert(path_of(&digest), content);
    json!({
        "mediaType": format!("application/vnd.oci.image.{kind}"),
        "digest": digest,
        "size": size,
    })
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

fn path_of(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

/// A name with the registry that Docker takes where there is none.
fn full_name(name: &str) -> String {
    let first = name.split('/').next().unwrap_or_default();
    match name.contains('/') {
        false => format!("docker.io/library/{name}"),
        true if first == "localhost" || first.contains(['.', ':']) => name.to_owned(),
        true => format!("docker.io/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// The members of a tar, with their contents.
    fn members(tar: &[u8]) -> BTreeMap<String, (tar::Header, Vec<u8>)> {
        let mut archive = tar::Archive::new(tar);
        let entries = archive.entries().expect("a tar").map(|entry| {
            let mut entry = entry.expect("an entry");
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("its content");
            let path = entry.path().expect("a path").display().to_string();
            (path, (entry.header().clone(), content))
        });
        entries.collect()
    }

    fn write(order: [usize; 2]) -> (String, Vec<u8>) {
        let file = |path: &str, executable, content: &[u8]| {
            let (path, content) = (path.to_owned(), content.to_owned());
            File { path, executable, content }
        };
        let mut files = [
            Some(file("/etc/ssl/certs/ca.crt", false, b"a CA")),
            Some(file("/plimsoll", true, &[7; 3000])),
        ];
        let definition = Definition {
            user: "65532:65532".to_owned(),
            entrypoint: vec!["/plimsoll".to_owned()],
            exposed_ports: vec!["6443/tcp".to_owned()],
            labels: [("a".to_owned(), "b".to_owned())].into(),
            ..Definition::default()
        };
        let archive = Archive {
            name: "plimsoll:0.1.0",
            architecture: "amd64",
            created: 1_700_000_000,
            compression: Compression::default(),
            definition: &definition,
            files: order.iter().filter_map(|&place| files[place].take()).collect(),
        };
        let mut bytes = Vec::new();
        (archive.write(&mut bytes).expect("it is written"), bytes)
    }

    #[test]
    fn the_same_files_in_any_order_give_the_same_archive() {
        assert_eq!(write([0, 1]), write([1, 0]));
    }

    #[test]
    fn each_reader_finds_the_config_and_the_layer_by_their_digests() {
        let (manifest_digest, archive) = write([0, 1]);
        let members = members(&archive);
        let of = |path: &str| &members[path].1;
        let json = |path: &str| serde_json::from_slice::<Value>(of(path)).expect("JSON");
        for (path, (_, content)) in members.iter().filter(|(path, _)| path.starts_with("blobs/")) {
            assert_eq!(*path, path_of(&digest(content)));
        }
        let index = json("index.json");
        assert_eq!(index["manifests"][0]["digest"], *manifest_digest);
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "docker.io/library/plimsoll:0.1.0"
        );
        let manifest = json(&path_of(&manifest_digest));
        let docker = json("manifest.json");
        let named = |value: &Value| path_of(value["digest"].as_str().expect("a digest"));
        assert_eq!(docker[0]["Config"], named(&manifest["config"]));
        assert_eq!(docker[0]["Layers"], json!([named(&manifest["layers"][0])]));
        let config = json(&named(&manifest["config"]));
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        assert_eq!(config["config"]["User"], "65532:65532");
        let mut layer = Vec::new();
        let compressed = of(&named(&manifest["layers"][0]));
        flate2::read::GzDecoder::new(&compressed[..]).read_to_end(&mut layer).expect("gzip");
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest(&layer)]));
        let layer = super::tests::members(&layer);
        let paths: Vec<&str> = layer.keys().map(String::as_str).collect();
        assert_eq!(
            paths,
            ["etc/", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca.crt", "plimsoll"]
        );
        let (header, content) = &layer["plimsoll"];
        assert_eq!((header.mode().expect("a mode"), content.len()), (0o755, 3000));
        assert_eq!(
            (header.uid().expect("a user"), header.mtime().expect("a time")),
            (0, 1_700_000_000)
        );
    }

    #[test]
    fn a_name_without_a_registry_is_dockers() {
        assert_eq!(full_name("plimsoll:1"), "docker.io/library/plimsoll:1");
        assert_eq!(full_name("team/plimsoll:1"), "docker.io/team/plimsoll:1");
        assert_eq!(full_name("localhost/app:1"), "localhost/app:1");
        assert_eq!(full_name("registry.example:5000/app:1"), "registry.example:5000/app:1");
    }
}

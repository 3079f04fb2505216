//! A real Chromium without a window, and `plimsoll ui` for it.

use bed::plimsoll::binary;
use bed::process::Process;
use bed::{eventually, free_port, parts};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a page may take to show something.
const SHOWN: Duration = Duration::from_secs(60);

/// `plimsoll ui`, and the address that it printed.
pub struct Ui {
    pub address: String,
    _process: Process,
}

impl Ui {
    /// Starts it with a kubeconfig and more arguments; its output goes to a file of the folder.
    pub async fn start(folder: &Path, kubeconfig: &Path, arguments: &[&str]) -> Self {
        let name = format!("ui-{}", free_port());
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let mut all = ["ui", "--no-browser", &kubeconfig].map(str::to_owned).to_vec();
        all.extend(arguments.iter().map(|one| (*one).to_owned()));
        let process = Process::start(&parts(&[]), folder, false, &name, &binary(), &all);
        let address = eventually("plimsoll ui prints its address", SHOWN, async || {
            let text = std::fs::read_to_string(&process.log).map_err(|error| error.to_string())?;
            let word = text.split_whitespace().find(|word| word.starts_with("http://"));
            word.filter(|_| text.ends_with('\n')).map(str::to_owned).ok_or(text)
        })
        .await;
        Self { address, _process: process }
    }

    /// The address without the key.
    pub fn origin(&self) -> &str {
        self.address.split("/#").next().unwrap_or_default()
    }
}

/// Chromium, driven by chromedriver.
pub struct Browser {
    /// The address of the session.
    session: String,
    http: reqwest::Client,
    _chromedriver: Process,
    _profile: tempfile::TempDir,
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub scheme: &'static str,
    pub width: u32,
    pub height: u32,
}

/// Dark and light, wide and narrow.
pub const LOOKS: [Look; 4] = [
    Look { scheme: "light", width: 1280, height: 900 },
    Look { scheme: "dark", width: 1280, height: 900 },
    Look { scheme: "light", width: 390, height: 800 },
    Look { scheme: "dark", width: 390, height: 800 },
];

impl Browser {
    /// Starts it. `bed/build all` installs its Debian packages.
    pub async fn start(folder: &Path) -> Self {
        let browser = ["chromium", "google-chrome"].iter().find_map(|name| program(name));
        let missing =
            "is missing: install the Debian packages chromium and chromium-driver (bed/build all)";
        let browser = browser.unwrap_or_else(|| panic!("chromium {missing}"));
        let chromedriver =
            program("chromedriver").unwrap_or_else(|| panic!("chromedriver {missing}"));
        // For `reqwest`, whichever test begins.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let port = free_port();
        let arguments = [format!("--port={port}")];
        let name = format!("chromedriver-{port}");
        let chromedriver =
            Process::start(&parts(&[]), folder, false, &name, &chromedriver, &arguments);
        let server = format!("http://127.0.0.1:{port}");
        eventually("chromedriver is ready", SHOWN, async || {
            let status = reqwest::get(format!("{server}/status")).await;
            status.map(|_| ()).map_err(|error| format!("{error}\n{}", chromedriver.tail()))
        })
        .await;
        let profile = tempfile::tempdir().expect("a folder");
        let data = format!("--user-data-dir={}", profile.path().display());
        // Chromium does not run as root in its sandbox.
        let arguments = json!([
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
            data
        ]);
        let capabilities = json!({
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": browser, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        });
        let http = reqwest::Client::new();
        let wanted = json!({"capabilities": {"alwaysMatch": capabilities}}).to_string();
        let session = command(http.post(format!("{server}/session")).body(wanted)).await;
        let id = session["sessionId"].as_str().expect("a session");
        let session = format!("{server}/session/{id}");
        Self { session, http, _chromedriver: chromedriver, _profile: profile }
    }

    /// The entries of a log since the last look into it.
    async fn log(&self, name: &str) -> Vec<Value> {
        let log = self.post("se/log", json!({"type": name})).await;
        log.as_array().cloned().unwrap_or_default()
    }

    /// A command of WebDriver, and what it returns.
    async fn post(&self, path: &str, body: Value) -> Value {
        command(self.http.post(format!("{}/{path}", self.session)).body(body.to_string())).await
    }

    /// Runs a script in the page: `sync`, or `async` with a callback as its last argument.
    async fn run(&self, kind: &str, script: &str) -> Value {
        self.post(&format!("execute/{kind}"), json!({"script": script, "args": []})).await
    }

    /// Ends it.
    pub async fn quit(self) {
        command(self.http.delete(&self.session)).await;
    }

    /// Opens an address.
    pub async fn open(&self, address: &str) {
        self.post("url", json!({"url": address})).await;
    }

    /// Loads the page again.
    pub async fn refresh(&self) {
        self.post("refresh", json!({})).await;
    }

    /// A command of the DevTools protocol.
    pub async fn devtools(&self, command: &str, arguments: Value) {
        let body = json!({"cmd": command, "params": arguments});
        self.post("goog/cdp/execute", body).await;
    }

    /// Looks at the page in this way.
    pub async fn look(&self, look: Look) {
        let Look { scheme, width, height } = look;
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
        let features = json!([{"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// The value of a JavaScript expression in the page.
    pub async fn value(&self, expression: &str) -> Value {
        self.run("sync", &format!("return {expression}")).await
    }

    /// The text of an element, as it is shown.
    pub async fn text(&self, selector: &str) -> String {
        let expression = format!("document.querySelector({})?.innerText", json!(selector));
        self.value(&expression).await.as_str().unwrap_or_default().to_owned()
    }

    /// Looks into a frame, until [`Self::leave`].
    pub async fn enter(&self, selector: &str) {
        let frame = self.value(&format!("document.querySelector({})", json!(selector))).await;
        self.post("frame", json!({"id": frame})).await;
    }

    /// Looks at the whole page again.
    pub async fn leave(&self) {
        self.post("frame", json!({"id": null})).await;
    }

    /// Waits until an element shows a text.
    pub async fn shows(&self, selector: &str, text: &str) {
        eventually(&format!("{selector} shows {text:?}"), SHOWN, async || {
            let shown = self.text(selector).await;
            if shown.contains(text) { Ok(()) } else { Err(shown) }
        })
        .await;
    }

    /// Presses keys where the focus is.
    pub async fn press(&self, keys: &str) {
        let focused = self.value("document.activeElement").await;
        let element = focused[ELEMENT].as_str().expect("an element");
        self.post(&format!("element/{element}/value"), json!({"text": keys})).await;
    }

    /// The middle of an element.
    async fn middle(&self, selector: &str) -> [f64; 2] {
        let expression = format!(
            "(() => {{ const at = document.querySelector({}).getBoundingClientRect();
                return [at.x + at.width / 2, at.y + at.height / 2]; }})()",
            json!(selector)
        );
        let middle = self.value(&expression).await;
        [0, 1].map(|one| middle[one].as_f64().expect("a number"))
    }

    /// Points at an element, so many pixels right of its middle.
    pub async fn point(&self, selector: &str, right: f64) {
        let [x, y] = self.middle(selector).await;
        let event = json!({"type": "mouseMoved", "x": x + right, "y": y});
        self.devtools("Input.dispatchMouseEvent", event).await;
    }

    /// Drags within an element, between two places so many pixels right of its middle.
    pub async fn drag(&self, selector: &str, from: f64, to: f64) {
        let middle = self.middle(selector).await;
        for (kind, right, buttons) in [
            ("mouseMoved", from, 0),
            ("mousePressed", from, 1),
            ("mouseMoved", to, 1),
            ("mouseReleased", to, 0),
        ] {
            let event = json!({"type": kind, "x": middle[0] + right, "y": middle[1],
                "button": "left", "buttons": buttons, "clickCount": 1});
            self.devtools("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Checks the page with axe in each look, and that nothing is wider than it.
    pub async fn is_accessible(&self) {
        let axe = include_str!("axe/axe.min.js");
        self.run("sync", axe).await;
        for look in LOOKS {
            self.look(look).await;
            let script = "const done = arguments[arguments.length - 1];
                axe.run().then((found) => done(found.violations.map((one) =>
                    [one.id, ...one.nodes.map((node) => node.html + ' ' + node.failureSummary)])),
                    (error) => done(String(error)));";
            let found = self.run("async", script).await;
            assert_eq!(found, json!([]), "{look:?}");
            let wider = "[...document.querySelectorAll('body *')].filter((node) => !node.closest('.scroll, .unseen')
                && node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
                .map((node) => node.outerHTML.slice(0, 200))";
            assert_eq!(self.value(wider).await, json!([]), "{look:?}");
        }
        self.look(LOOKS[0]).await;
    }

    /// Checks that the page has logged no error, and returns the addresses of its requests.
    pub async fn requests(&self) -> Vec<String> {
        let logged = self.log("browser").await;
        let errors: Vec<_> = logged.iter().filter(|entry| entry["level"] == "SEVERE").collect();
        assert!(errors.is_empty(), "{errors:?}");
        let mut seen = Vec::new();
        for entry in self.log("performance").await {
            let text = entry["message"].as_str().unwrap_or_default();
            let event: Value = serde_json::from_str(text).expect("an event");
            let message = &event["message"];
            if message["method"] == "Network.requestWillBeSent" {
                let url = message["params"]["request"]["url"].as_str().unwrap_or_default();
                // Chromium's own pages are no part of this one, and a blob is in the page.
                if !["chrome:", "about:", "data:", "blob:"]
                    .iter()
                    .any(|scheme| url.starts_with(scheme))
                {
                    seen.push(url.to_owned());
                }
            }
        }
        seen
    }

    /// Checks that the page has logged no error and sent requests to itself only.
    pub async fn stayed_at(&self, origin: &str) {
        let seen = self.requests().await;
        let elsewhere = seen.iter().find(|url| !url.starts_with(&format!("{origin}/")));
        assert_eq!(elsewhere, None);
        assert!(seen.len() > 5, "{seen:?}");
    }

    /// Writes a picture to docs/images, if SCREENSHOTS is set.
    pub async fn screenshot(&self, name: &str) {
        if std::env::var_os("SCREENSHOTS").is_some() {
            let folder = bed::root().join("docs/images");
            std::fs::create_dir_all(&folder).expect("a folder");
            let screenshot = self.http.get(format!("{}/screenshot", self.session));
            let picture = command(screenshot).await;
            let picture: k8s_openapi::ByteString = serde_json::from_value(picture).expect("base64");
            std::fs::write(folder.join(format!("{name}.png")), picture.0).expect("a file");
        }
    }
}

/// The field with the id of an element (WebDriver, 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Sends a command to chromedriver; what it returns.
async fn command(request: reqwest::RequestBuilder) -> Value {
    let response = request.send().await.expect("chromedriver answers");
    let is_done = response.status().is_success();
    let body = response.bytes().await.expect("a body");
    let mut answer: Value = serde_json::from_slice(&body).expect("JSON");
    assert!(is_done, "{answer:#}");
    answer["value"].take()
}

/// A program of `PATH`.
fn program(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

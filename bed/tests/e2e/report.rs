//! The report of `plimsoll backtest`, in a real Chromium.

use crate::browser::{Browser, LOOKS};
use crate::{SOON, runtime};
use bed::plimsoll::binary;
use bed::{eventually, root};
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// Keys as WebDriver writes them (17.4.2).
const END: &str = "\u{E010}";
const HOME: &str = "\u{E011}";
const LEFT: &str = "\u{E012}";
const RIGHT: &str = "\u{E014}";

/// Names that would be markup where they are not texts.
const HOSTILE: &str = "x</script><img src=x onerror=document.title='taken'>";

fn autoscaler(name: &str, target: f64) -> String {
    json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 2, "maxReplicas": 40,
            "customMetrics": [{"metricName": "cpu", "averageValue": target.to_string()}]}})
    .to_string()
}

/// The report on eleven days of a trace, of an Autoscaler and one with headroom, written to a file of the folder; its
/// address.
fn report(folder: &Path, format: &str, other: &str) -> String {
    for (name, text) in
        [("web.yaml", autoscaler("web", 5.0)), ("other.yaml", autoscaler(other, 4.0))]
    {
        std::fs::write(folder.join(name), text).expect("a file");
    }
    let output = Command::new(binary())
        .current_dir(folder)
        .arg("backtest")
        .arg("--load")
        .arg(root().join("tests/data/traces/crane-14.csv.gz"))
        .args(["-f", "web.yaml", "-f", "other.yaml", "--pod-carries", "5", "--to"])
        .args(["2021-10-19T00:00:00Z", "--output", format])
        .output()
        .expect("plimsoll");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = folder.join(format!("{}.{format}", other.len()));
    std::fs::write(&path, output.stdout).expect("a file");
    format!("file://{}", path.display())
}

#[test]
fn the_report_of_a_backtest_needs_nothing_but_its_file() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let browser = Browser::start(folder.path()).await;
        browser.look(LOOKS[0]).await;
        let plain = report(folder.path(), "html", "headroom");
        browser.open(&plain).await;
        browser.shows("#story-of", "Scaled").await;
        browser.screenshot("backtest-page").await;
        let page = report(folder.path(), "html", HOSTILE);
        browser.open(&page).await;

        browser.shows("h1", &format!("Backtest of web, {HOSTILE}")).await;
        browser.shows(".verdict", "replica-hours").await;
        browser.shows("#figures", HOSTILE).await;
        browser.shows("#changes-count", "changes, from").await;
        // The first change is told of.
        browser.shows("#story-of", "Scaled").await;
        browser.shows("#story-of", "target 5").await;
        let drawn = browser.value("document.querySelectorAll('#chart canvas, #difference canvas').length");
        assert_eq!(drawn.await, 2);
        let blank = "(() => { const canvas = document.querySelector('#chart canvas');
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            return new Set(Array.from({ length: data.length / 4 }, (_, at) =>
                data[at * 4] << 16 | data[at * 4 + 1] << 8 | data[at * 4 + 2])).size; })()";
        let colors = browser.value(blank).await;
        assert!(colors.as_u64().is_some_and(|colors| colors > 20), "{colors} colors");

        // By keys, from change to change; what is chosen is spoken.
        browser.value("document.getElementById('chart').focus()").await;
        let chosen = async || browser.text("#story-when").await;
        browser.press(HOME).await;
        let first = chosen().await;
        browser.press(RIGHT).await;
        let second = chosen().await;
        assert_ne!(first, second);
        browser.press(LEFT).await;
        assert_eq!(chosen().await, first);
        browser.press(END).await;
        let spoken = browser.value("document.getElementById('chart').ariaValueText").await;
        let when = chosen().await;
        assert!(spoken.as_str().is_some_and(|text| text.contains(&when)), "{spoken}");
        assert!(spoken.to_string().contains("web: At this time: "), "{spoken}");

        // A zoom shows fewer changes.
        let count = async || -> u64 {
            let text = browser.text("#changes-count").await;
            text.split(' ').nth(2).and_then(|count| count.parse().ok()).unwrap_or_default()
        };
        let all = count().await;
        let fewer = async || {
            eventually("fewer changes are listed", SOON, async || {
                let now = count().await;
                if now < all { Ok(()) } else { Err(format!("{now} of {all}")) }
            })
            .await;
        };
        browser.press("+++").await;
        fewer().await;
        browser.press("---").await;
        eventually("all are listed again", SOON, async || {
            let now = count().await;
            if now == all { Ok(()) } else { Err(format!("{now} of {all}")) }
        })
        .await;
        browser.drag("#chart .u-over", -100.0, 50.0).await;
        fewer().await;

        // And under the pointer.
        let last = chosen().await;
        eventually("the pointer chooses a decision", SOON, async || {
            for right in [0.0, 30.0, 60.0] {
                browser.point("#chart .u-over", right).await;
                if chosen().await != last {
                    return Ok(());
                }
            }
            Err(browser.text("#story").await)
        })
        .await;
        browser.is_accessible().await;
        assert_eq!(browser.value("document.title.startsWith('Backtest of')").await, true);
        assert_eq!(browser.requests().await, [plain, page]);

        // The picture is an image that Chromium takes.
        browser.open(&report(folder.path(), "svg", HOSTILE)).await;
        assert_eq!(browser.value("document.documentElement.tagName").await, "svg");
        assert_eq!(browser.value("document.querySelectorAll('parsererror, script, image').length").await, 0);
        let shown = "[...document.querySelectorAll('text')].map((one) => one.textContent).join()";
        let shown = browser.value(shown).await;
        assert!(shown.to_string().contains(HOSTILE), "{shown}");
        browser.requests().await;
        browser.quit().await;
    });
}

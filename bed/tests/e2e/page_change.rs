//! "Try a change" on the page of `plimsoll ui`, in a real Chromium, on what a real Prometheus recorded.

use crate::browser::{Browser, LOOKS, Ui};
use crate::{FOLLOWS, SOON, on_shared_bed};
use bed::eventually;
use bed::plimsoll::binary;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A key as WebDriver writes it (17.4.2).
const ENTER: &str = "\u{E007}";

/// `plimsoll backtest` of a file `edited` with this text in the folder, on the last hour.
fn backtest(folder: &Path, url: &str, text: &str) -> Result<Value, String> {
    std::fs::write(folder.join("edited"), text).expect("a file");
    let mut command = Command::new(binary());
    command.current_dir(folder).args(["backtest", "-f", "edited", "--from=-1h", "-o", "json", url]);
    let output = command.output().expect("it can be run");
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).expect("JSON")),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn a_change_is_tried_on_the_page_as_backtest_tries_it() {
    on_shared_bed("change", async |bed, ns| {
        ns.deployment("web", 2, "").await;
        bed.cluster.load("change", "app=web", "/hit/http_requests_total", 36.0).await;
        let fields = "minReplicas: 2, maxReplicas: 12, syncPeriodSeconds: 1, \
            customMetrics: [{metricName: http_requests_total, averageValue: 20}]";
        ns.autoscaler_with("Deployment", "web", fields).await;
        let url = format!("--prometheus-url=http://127.0.0.1:{}", bed.cluster.prometheus_port);
        let folder = tempfile::tempdir().expect("a folder");
        eventually("there is a load to try it on", FOLLOWS, async || {
            let object = ns.get("autoscaler", "web").await?;
            let tried = backtest(folder.path(), &url, &object.to_string())?;
            let is_there = tried["ticks"].as_i64() > Some(30) && tried["reproduction"].is_object();
            if is_there { Ok(()) } else { Err(format!("{tried}")) }
        })
        .await;

        let ui =
            Ui::start(&bed.cluster.folder, &bed.cluster.kubeconfig, &["-n", "change", &url]).await;
        let browser = Browser::start(&bed.cluster.folder).await;
        browser.look(LOOKS[0]).await;
        browser.open(&ui.address).await;
        browser.shows("#rows", "web").await;
        browser.value("location.hash = '#/change/Autoscaler/web'").await;
        browser.shows("#change", "Edit the spec").await;
        assert_eq!(browser.value("document.getElementById('change-off').hidden").await, true);

        // Without a mouse: open it, edit, and try.
        browser.value("document.querySelector('#change summary').focus()").await;
        browser.press(ENTER).await;
        eventually("the present spec is there to be edited", SOON, async || {
            let text = browser.value("document.getElementById('change-text').value").await;
            if text.to_string().contains("minReplicas: 2") { Ok(()) } else { Err(text.to_string()) }
        })
        .await;
        let text = browser.value("document.getElementById('change-text').value").await;
        let text = text.as_str().expect("a text");
        assert!(!text.contains("status:") && !text.contains("managedFields"), "{text}");
        browser.is_accessible().await;
        let edit = async |text: &str| {
            let fill = format!(
                "(() => {{ document.getElementById('change-text').value = {}; document.getElementById('change-try').focus(); }})()",
                json!(text)
            );
            browser.value(&fill).await;
            browser.press(ENTER).await;
        };
        browser.value("document.getElementById('change-span').value = '1'").await;
        edit(&text.replace("minReplicas: 2", "minReplicas: 6")).await;
        browser.shows("#change-state", "The report is below").await;
        assert_eq!(browser.text("#change-error").await, "");

        // The report is the page of a backtest, with its charts and no way to this page.
        browser.enter("#change-report iframe").await;
        browser.shows("h1", "Backtest of web (present), web (edited)").await;
        browser.shows(".verdict", "carries: 20 of http_requests_total (the target of web").await;
        browser.shows(".verdict", "web (edited) against web (present): +").await;
        browser.shows("#main", "Reproduced by web (present)").await;
        let drawn = "document.querySelectorAll('#chart canvas, #difference canvas').length";
        assert_eq!(browser.value(drawn).await, 2);
        let other = "(() => { try { return parent.localStorage.length } catch (error) { return error.name } })()";
        assert_eq!(browser.value(other).await, "SecurityError");
        browser.leave().await;
        browser.is_accessible().await;
        browser.value("document.getElementById('change-title').scrollIntoView()").await;
        browser.screenshot("page-change").await;
        browser.stayed_at(ui.origin()).await;

        // What is wrong is said in the words of the command.
        let wrong = text.replace("maxReplicas: 12", "maxReplicas: 0");
        for wrong in ["spec: [", &wrong] {
            let said = backtest(folder.path(), &url, wrong).expect_err("an error");
            edit(wrong).await;
            browser.shows("#change-error", said.trim().trim_start_matches("plimsoll: ")).await;
        }
        edit(&text.replace("name: web", "name: api")).await;
        browser.shows("#change-error", "it is change/api, and change/web").await;
        // The cluster is as it was.
        let spec = ns.get("autoscaler", "web").await.expect("it");
        assert_eq!(spec["spec"]["minReplicas"], 2);
        browser.quit().await;
    });
}

//! Reports as pages and pictures. `UPDATE_PICTURES=1 cargo test --lib backtest` writes tests/data/backtest.svg.

use super::html::escape;
use super::report::{Bounds, FromPrometheus, Start};
use super::*;
use crate::backtest::{Options, Reproduction, Trust};
use serde_json::{Value, json};
use std::io::Read as _;
use std::time::Duration;

/// Would be markup where it is not a text.
const HOSTILE: &str = "</script></style><img src=x onerror=alert(1)>{{data}}\" '\u{202e}\u{ffff}&";

fn candidate(name: &str, target: &str) -> Candidate {
    candidate_by("requests", name, target)
}

fn candidate_by(metric: &str, name: &str, target: &str) -> Candidate {
    let spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1, "maxReplicas": 12,
        "customMetrics": [{"metricName": metric, "averageValue": target}],
        "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}},
    });
    Candidate::new(name, "shop", spec).expect("a candidate")
}

/// An hour of load that rises, falls and has a gap.
const LOAD: &str = "time,value\n0,20\n900,90\n1200,95\n1800,30\n2400,30\n2700,\n3000,60\n3600,40\n";

fn tried(candidates: Vec<Candidate>, bounds: Bounds) -> Tried {
    let load = Load::read(LOAD.as_bytes()).expect("a load");
    let seconds = Duration::from_secs;
    let options = Options {
        pod_start: seconds(60),
        window: seconds(60),
        scrape_interval: seconds(15),
        warm_up: Duration::ZERO,
        period: Some(seconds(60)),
        service_rate: None,
    };
    let low_confidence = backtest::low_confidence(&load);
    let mut tried = Tried {
        runs: Vec::new(),
        begin: load.first(),
        low_confidence,
        coarse: None,
        judged: Some("Judged by <one> pod.".to_owned()),
        recorded: None,
        was: Vec::new(),
        recordings: Vec::new(),
        candidates: Vec::new(),
        options,
    };
    for one in &candidates {
        let span = (load.first(), load.last());
        let mut recording = Some(bounds.recording(one, &candidates, &options, span));
        let run = backtest::run_observed(one, &load, &options, &mut recording);
        tried.runs.push(run.expect("a run"));
        tried.recordings.extend(recording);
    }
    tried.candidates = candidates;
    tried
}

fn page() -> Bounds {
    Bounds::of(ReportFormat::Html).expect("a page has charts")
}

fn small() -> Bounds {
    Bounds::of(ReportFormat::Svg).expect("a picture is a chart")
}

fn two(name: &str) -> Vec<Candidate> {
    vec![candidate(name, "10"), candidate("headroom", "8")]
}

/// The text between two others.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).expect(start);
    rest.split_once(end).expect(end).0
}

#[test]
fn no_name_becomes_markup() {
    let tried = tried(two(HOSTILE), page());
    let page = html::html(&tried);
    let svg = svg::svg(&picture::picture(&tried));
    for text in [&page, &svg] {
        assert!(!text.contains("<img") && !text.contains('\u{202e}'));
        assert!(text == &page || !text.contains('\u{ffff}'));
        assert!(text.contains(&escape(HOSTILE)));
    }
    let data = between(&page, "<script type=\"application/json\" id=\"data\">", "</script>");
    let data: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data["candidates"][0]["name"], *plain(HOSTILE));
    // What is put in is not looked at again.
    assert_eq!(page.matches("\"candidates\":").count(), 1);
    assert!(picture::picture(&tried).marks.len() > 20);
}

#[test]
fn a_page_runs_only_its_own_scripts_and_asks_for_nothing() {
    let page = html::html(&tried(two("web"), page()));
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\"");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    for (start, end) in [("<script>", "</script>"), ("<style>", "</style>")] {
        for part in page.split(start).skip(1) {
            let text = part.split(end).next().unwrap_or_default();
            assert!(policy.contains(&html::hash(text)), "{}", &text[..80]);
        }
    }
    assert_eq!(page.matches("<script").count(), 3);
    for way in
        [" src=", "url(", "@import", "innerHTML", "fetch(", "XMLHttpRequest", "style=\"", "onclick"]
    {
        let own = page.replace(include_str!("../ui/assets/vendor/uPlot.iife.min.js"), "");
        assert!(!own.contains(way), "{way}");
    }
    for line in page.lines() {
        assert!(!line.starts_with("import ") && !line.starts_with("export "), "{line}");
    }
}

#[test]
fn a_change_is_told_of_as_the_ledger_tells_of_it() {
    let tried = tried(two("web"), page());
    let data = serde_json::to_value(page_data::data(&tried)).expect("JSON");
    let of = &data["candidates"][0];
    let changes: Vec<&Value> = of["decisions"]
        .as_array()
        .expect("decisions")
        .iter()
        .filter(|row| !row[4].is_null() && row[2] != row[4])
        .collect();
    assert_eq!(changes.len() as u64, tried.runs[0].figures.scale_events);
    let limit =
        data["constraints"].as_array().expect("names").iter().position(|one| one == "ScaleUpLimit");
    let limited =
        changes.iter().find(|row| row[7][0][0] == json!(limit)).expect("a limited change");
    // The metric asked for more than the policy allows, two pods a minute.
    assert!(limited[3].as_i64() > limited[4].as_i64(), "{limited}");
    assert_eq!(limited[4].as_i64().unwrap() - limited[2].as_i64().unwrap(), 2);
    assert_eq!(data["reasons"][limited[5].as_u64().unwrap() as usize], "PolicyLimited");
    let [status, proposed, value] = [0, 1, 2].map(|index| &limited[6][0][index]);
    assert_eq!(
        (&data["statuses"][status.as_u64().unwrap() as usize], proposed),
        (&json!("Used"), &limited[3])
    );
    assert!(value.as_i64() > Some(10_000), "{value}");
    // A gap has no load, and a decision says why it is none.
    let high = data["loads"][0]["high"].as_array().expect("loads");
    assert_eq!(high.iter().filter(|load| load.is_null()).count(), 9, "{high:?}");
    let texts = data["texts"].as_array().expect("texts");
    assert!(!texts.is_empty() && texts.len() <= 4, "{texts:?}");
    assert_eq!(data["low"], json!([[2400.0, 3000.0]]));
}

#[test]
fn a_chart_has_the_worst_of_each_slot() {
    let all = tried(two("web"), page());
    let few = tried(two("web"), Bounds { slots: 10, of_all: 20, decisions: 4 });
    let most =
        |tried: &Tried| tried.recordings[0].slots.iter().flatten().map(|slot| slot.short).max();
    assert_eq!((all.recordings[0].axis.slots, few.recordings[0].axis.slots), (61, 9));
    assert_eq!(most(&all), most(&few));
    let worst = all.runs[0].figures.worst_under.expect("short of pods");
    assert_eq!(most(&all), Some(worst.needed - worst.ready as i64));
    // Of each kind two for each of two candidates, and the one that begins.
    assert!(few.recordings.iter().all(|one| one.decisions.len() <= 5));
    assert!(few.recordings[0].every_change > 0 && all.recordings[0].every_change == 0);
}

#[test]
fn what_there_was_is_beside_what_would_have_been() {
    let mut tried = tried(two("web"), Bounds { slots: 10, of_all: 20, decisions: 4 });
    let before = picture::picture(&tried).marks.len();
    assert_eq!(tried.was_in_slots(), []);
    // Slots of seven minutes.
    tried.was = vec![(500_000, 3), (600_000, 4), (1_300_000, 9)];
    let was = [None, Some(4), Some(4), Some(9)];
    let slots = tried.was_in_slots();
    assert_eq!((&slots[..4], slots.len()), (&was[..], 9));
    let data = serde_json::to_value(page_data::data(&tried)).expect("JSON");
    assert_eq!(data["was"][3], 9);
    // A line in each panel, and two marks of the legend.
    assert_eq!(picture::picture(&tried).marks.len(), before + 4);
}

#[test]
fn the_picture_is_as_it_was() {
    let svg = svg::svg(&picture::picture(&tried(two("web"), small())));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/backtest.svg");
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        std::fs::write(&path, &svg).expect("a file");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let different = svg.lines().zip(expected.lines()).find(|(now, then)| now != then);
    assert_eq!(different, None);
    assert_eq!(svg.len(), expected.len());
}

#[test]
fn the_pixels_are_those_of_the_picture() {
    let scene = picture::picture(&tried(two("web"), small()));
    let png = png::png(&scene);
    let length =
        |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes")) as usize;
    let (width, height) = (length(16), length(20));
    assert_eq!((width as f64, height as f64), (scene.width * 2.0, scene.height * 2.0));
    let data = &png[41..41 + length(33)];
    let mut rows = Vec::new();
    flate2::read::ZlibDecoder::new(data).read_to_end(&mut rows).expect("zlib");
    assert_eq!(rows.len(), height * (width * 3 + 1));
    let mut colors = std::collections::HashMap::new();
    let mut above = vec![0_u8; width * 3];
    for row in rows.chunks(width * 3 + 1) {
        assert_eq!(row[0], 2);
        for (pixel, byte) in above.iter_mut().zip(&row[1..]) {
            *pixel = pixel.wrapping_add(*byte);
        }
        for pixel in above.chunks(3) {
            *colors.entry([pixel[0], pixel[1], pixel[2]]).or_insert(0) += 1;
        }
    }
    // More than half is background; the lines, areas and marks have their colors.
    let of = |color: [u8; 3]| colors.get(&color).copied().unwrap_or(0);
    assert!(of([0xff; 3]) > width * height / 2);
    for color in [[0x0b, 0x57, 0xd0], [0x8a, 0x4b, 0x00], [0xd9, 0x30, 0x25], [0xb9, 0xc2, 0xcc]] {
        assert!(of(color) > 200, "{color:x?}: {}", of(color));
    }
}

#[test]
fn midnight_is_the_hour_0_of_its_day() {
    // Of "en", hour12: false makes 24 of it.
    assert!(!include_str!("assets/report.js").contains("hour12"));
}

#[test]
fn a_page_has_the_load_of_each_metric() {
    let jobs = candidate_by("jobs", "jobs", "10");
    let data = page_data::data(&tried(vec![candidate("web", "10"), jobs], page()));
    let data = serde_json::to_value(data).expect("JSON");
    let loads = data["loads"].as_array().expect("loads");
    assert_eq!(loads.len(), 2);
    assert!(loads[0]["name"].as_str().is_some_and(|name| name.starts_with("requests")));
    assert_eq!(loads[0]["high"], loads[1]["high"]);
}

#[test]
fn a_page_says_by_which_number_it_judges() {
    let page = html::html(&tried(two("web"), page()));
    assert!(page.contains("<li>Judged by &lt;one&gt; pod.</li>"));
}

#[test]
fn a_picture_and_json_say_by_which_number_they_judge() {
    let svg = svg::svg(&picture::picture(&tried(two("web"), small())));
    // Below the title, and for those who do not see it.
    assert_eq!(svg.matches("Judged by &lt;one&gt; pod.").count(), 2, "{svg}");
    let json: Value = serde_json::from_str(&json::json(tried(two("web"), small()))).expect("JSON");
    assert_eq!(json["judged"], "Judged by <one> pod.");
    let assumptions = json["assumptions"].as_array().expect("assumptions");
    assert!(assumptions[0].as_str().is_some_and(|one| one.contains("is ready after 60s")));
    // What is long has lines, and an end.
    let mut long = tried(two("web"), small());
    long.judged = Some("by some words ".repeat(60));
    let texts = |tried: &Tried| {
        let marks = picture::picture(tried).marks.into_iter();
        let is_text = |mark: &scene::Mark| matches!(mark, scene::Mark::Text { .. });
        marks.filter(is_text).count()
    };
    let lines = texts(&long) - texts(&tried(two("web"), small())) + 1;
    assert_eq!(lines, 4);
}

#[test]
fn a_picture_has_the_scale_of_its_replicas() {
    let marks = picture::picture(&tried(two("web"), small())).marks;
    let scale = marks.iter().filter_map(|mark| match mark {
        scene::Mark::Text { anchor: scene::Anchor::End, at, text, .. } => Some((at[1], &**text)),
        _ => None,
    });
    let scale: Vec<(f64, &str)> = scale.collect();
    // Of 12 replicas and a little more.
    for number in ["5", "10"] {
        let places: Vec<f64> =
            scale.iter().filter(|(_, text)| *text == number).map(|(up, _)| *up).collect();
        assert_eq!(places.len(), 2, "{number}: {scale:?}");
    }
    let up = |number: &str| scale.iter().find(|(_, text)| *text == number).map(|(up, _)| *up);
    assert!(up("5") > up("10"), "{scale:?}");
}

#[test]
fn no_name_of_a_metric_controls_the_terminal() {
    let mut agreement = backtest::Comparison::default();
    agreement.count(1, 1);
    let agreement = agreement.agreement().expect("one");
    let recorded = FromPrometheus {
        reproduction: Some(Reproduction {
            name: "web".to_owned(),
            source: "pods counted by their samples of \u{1b}[2J".to_owned(),
            agreement,
            changes: 0,
            stay: agreement,
            needed: agreement,
            trust: Trust::Medium,
            unknown: Vec::new(),
            replicas: Vec::new(),
        }),
        pod_start: Start { seconds: 60.0, p90: None, source: "--pod-start".to_owned() },
    };
    let text = reproduced(&recorded);
    assert!(!text.contains('\u{1b}') && text.contains("proves little"), "{text}");
    assert_eq!(plain_lines("a\u{1b}\nb"), "a\\u{1b}\nb");
}

#[test]
fn a_picture_is_not_written_to_a_terminal() {
    let error = refuse(ReportFormat::Png, true).unwrap_err();
    assert!(error.contains("> report.png"), "{error}");
    assert_eq!(refuse(ReportFormat::Png, false), Ok(()));
    assert_eq!(refuse(ReportFormat::Svg, true), Ok(()));
    assert!(page().check(9).unwrap_err().contains("at most 8"));
}

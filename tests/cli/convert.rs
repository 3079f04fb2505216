//! `plimsoll convert`.

use super::plimsoll;

#[test]
fn convert_fails_if_an_object_was_left_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let hpa = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\n\
        spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3, \
        behavior: {scaleDown: {selectPolicy: disabled}}}\n";
    std::fs::write(file.path(), hpa).unwrap();
    let path = file.path().to_str().unwrap();
    for arguments in [&["convert", path][..], &["convert", "-f", path]] {
        let output = plimsoll(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let error = String::from_utf8(output.stderr).unwrap();
        let expected =
            "error: HorizontalPodAutoscaler web: left out: spec.behavior.scaleDown.selectPolicy";
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(plimsoll(&["convert"]).status.code(), Some(2));
}

#[test]
fn convert_writes_previews_but_leaves_a_pause() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = |kind: &str, more: &str| {
        format!(
            "---\napiVersion: {kind}\nmetadata: {{name: web{}}}\nspec: {{scaleTargetRef: {{apiVersion: apps/v1, \
             kind: Deployment, name: web}}, maxReplicas: 3{more}}}\n",
            more.len()
        )
    };
    let hpa = text("autoscaling/v2\nkind: HorizontalPodAutoscaler", "");
    let paused = text("plimsoll.dev/v1alpha1\nkind: Autoscaler", ", mode: Paused");
    std::fs::write(file.path(), hpa + &paused).unwrap();
    let output = plimsoll(&["convert", "--preview", file.path().to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let modes: Vec<&str> = text.lines().filter(|line| line.contains("mode:")).collect();
    assert_eq!(modes, ["  mode: Preview", "  mode: Paused"], "{text}");
}

//! URLs without the secrets that they may have: notes and errors are kept in logs.

/// A URL, or a text that is meant to be one, without its userinfo, query and fragment: whatever could be of these.
pub fn without_userinfo(url: &str) -> String {
    let (scheme, rest) = match url.find("://") {
        Some(at) => url.split_at(at + 3),
        None => ("", url),
    };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let address = rest.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}{address}")
}

/// A text of others, whose URLs have the same left out. A password may have blanks and quotes, as the text in double
/// quotes that it is in has them; a query ends at one.
pub fn without_userinfos(text: &str) -> String {
    let mut is_escaped = false;
    let is_end = |c: char| {
        let is_end = c == '\n' || c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    };
    let parts =
        text.split_inclusive(is_end).map(|part| match (part.find("://"), part.rfind('@')) {
            (Some(url), Some(end)) if url < end => {
                format!("{}{}", &part[..url + 3], &part[end + 1..])
            }
            _ => part.to_owned(),
        });
    let text: String = parts.collect();
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
    let without_query = |part: &str| {
        let (url, end) = part.split_at(part.trim_end_matches(is_end).len());
        let is_url = url.contains("://");
        format!("{}{end}", if is_url { without_userinfo(url) } else { url.to_owned() })
    };
    text.split_inclusive(is_end).map(without_query).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SERVER, converted, scaled, trigger};
    use super::super::{convert_one, objects, yaml};

    /// Whoever converts the objects of a cluster keeps the notes in a log.
    #[test]
    fn no_note_or_error_has_a_secret_of_a_url() {
        let url = "https://reader:s3cr3t@prom.example:9090";
        for address in [
            url,
            "https://reader:s3/cr3t@prom.example:9090",
            "https://reader:s3 cr3t@prom.example:9090",
            "https://reader:s3@cr3t@prom.example:9090/api?to=a@b",
            "reader:s3cr3t@prom.example:9090",
            "https://s3cr3t@prom.example:9090",
            "https://prom.example:9090?token=s3cr3t",
            "https://prom.example:9090/?token=s3cr3t#s3cr3t",
            "https://reader:s3 cr3t\"`@prom.example:9090",
        ] {
            let (_, notes) = scaled(&format!(
                "  triggers: [{}]\n",
                trigger(&format!("serverAddress: '{address}'"))
            ));
            assert!(
                notes.contains("serverAddress") && notes.contains("asks the server"),
                "{notes}"
            );
            assert!(!notes.contains("cr3t") && !notes.contains("reader"), "{notes}");
            assert!(!address.ends_with("9090") || notes.contains("prom.example:9090"), "{notes}");
        }
        let object = |spec: &str| {
            let triggers = match spec.starts_with("triggers") {
                true => String::new(),
                false => format!("triggers: [{}], ", trigger(&format!("serverAddress: '{url}'"))),
            };
            let text = format!(
                "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web, namespace: shop}}, spec: \
                 {{scaleTargetRef: {{name: web}}, {triggers}{spec}}}}}",
            );
            objects::parse(&text).expect("YAML").remove(0)
        };
        for spec in [
            "".to_owned(),
            format!("pollingInterval: '{url}'"),
            format!("fallback: {{failureThreshold: 3, replicas: 2, behavior: '{url}'}}"),
            format!("'{url}': 1"),
            format!(
                "advanced: {{scalingModifiers: {{formula: '\"{url}\" + 1', target: '{url}'}}}}"
            ),
            format!("idleReplicaCount: 0, maxReplicaCount: '{url}'"),
            "pollingInterval: 'https://reader:s3 cr3t\"`@prom.example:9090'".to_owned(),
            "pollingInterval: 'https://prom.example:9090?token=s3cr3t'".to_owned(),
            "triggers: [{type: prometheus, metadata: \"serverAddress=https://x, customHeaders=Bearer s3cr3t\"}]".to_owned(),
            "triggers: [{type: prometheus, authenticationRef: s3cr3t, metadata: {}}]".to_owned(),
        ] {
            let mut tried = Vec::new();
            match convert_one(&object(&spec), Some(SERVER)) {
                Ok((_, notes)) => tried.extend(notes),
                Err(error) => tried.push(error),
            }
            let made = converted(&yaml(&object(&spec)));
            for text in made.notes.iter().chain(&made.errors).chain(&tried) {
                assert!(!text.contains("cr3t") && !text.contains("reader"), "{text}");
            }
            assert!(made.notes.len() + made.errors.len() > 0, "{made:?}");
        }
    }
}

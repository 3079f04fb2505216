//! Whether two addresses are of one Prometheus.

use reqwest::Url;

/// Whether two addresses are of one server. A Service has the same one by its short name, and with `svc` or
/// `svc.cluster.local` behind it.
pub fn is_same(one: &str, other: &str) -> bool {
    one == other || address(one).is_some_and(|one| Some(one) == address(other))
}

fn address(url: &str) -> Option<Url> {
    let mut url = Url::parse(url).ok()?;
    let host = url.host_str()?.trim_end_matches('.').to_owned();
    let service = [".svc.cluster.local", ".svc"].iter().find_map(|end| host.strip_suffix(end));
    url.set_host(Some(service.unwrap_or(&host))).ok()?;
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::super::tests::trigger;
    use super::super::{Converted, convert};
    use super::*;

    #[test]
    fn a_service_is_one_server_by_each_of_its_names() {
        for (one, other, is_one) in [
            (
                "http://prom.monitoring.svc:9090",
                "http://prom.monitoring.svc.cluster.local:9090/",
                true,
            ),
            ("http://prom.monitoring:9090", "http://prom.monitoring.svc:9090", true),
            ("http://prom.monitoring.svc.cluster.local.:9090", "http://PROM.monitoring:9090", true),
            ("https://prom.example:443/select/", "https://prom.example/select", true),
            ("http://prom.monitoring.svc:9090", "http://prom.other.svc:9090", false),
            ("http://prom.monitoring.svc:9090", "http://prom.monitoring.svc:9091", false),
            ("http://prom.monitoring.svc:9090", "https://prom.monitoring.svc:9090", false),
            ("http://prom.monitoring.svc:9090", "http://prom.monitoring.svc:9090/select", false),
            ("http://prom.monitoring.svc:9090", "http://a:b@prom.monitoring.svc:9090", false),
            ("http://prom.example", "http://prom.example?x=1", false),
            ("prom:9090", "prom:9090", true),
            ("prom:9090", "http://prom:9090", false),
        ] {
            assert_eq!(is_same(one, other), is_one, "{one} {other}");
            assert_eq!(is_same(other, one), is_one, "{other} {one}");
        }
    }

    #[test]
    fn any_of_the_servers_that_were_given_may_be_that_of_a_trigger() {
        let servers = ["http://prom.monitoring.svc:9090", "https://reader:s3cr3t@prom.example"];
        let notes = |address: &str| {
            let servers = servers.map(str::to_owned).to_vec();
            let mut made = Converted { servers, ..Converted::default() };
            let text = format!(
                "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web, namespace: shop}}, spec: \
                 {{scaleTargetRef: {{name: web}}, triggers: [{}]}}}}",
                trigger(&format!("serverAddress: '{address}'"))
            );
            convert(&text, &mut made).expect("YAML");
            made.notes.join("\n")
        };
        for address in ["http://prom.monitoring:9090/", servers[1]] {
            let notes = notes(address);
            assert!(!notes.contains("may not scale as before"), "{notes}");
        }
        let notes = notes("http://thanos:9090");
        assert!(notes.contains("may not scale as before"), "{notes}");
        let told = "serverAddress http://thanos:9090 is none of --prometheus-url http://prom.monitoring.svc:9090, https://prom.example";
        assert!(notes.contains(told), "{notes}");
    }
}

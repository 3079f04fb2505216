//! The HTTP proxy in front of the API server.

use hyper_util::client::proxy::matcher::Matcher;
use kube::config::Kubeconfig;
use std::net::IpAddr;

/// Sets the proxy as kubectl does: `proxy-url` of the cluster, or HTTPS_PROXY of the environment
/// unless NO_PROXY matches the server. kube 5 compares NO_PROXY with the proxy's own address.
pub fn choose_proxy(config: &mut kube::Config, file: &Kubeconfig, context: Option<&str>) {
    let context = context.or(file.current_context.as_deref());
    let named = file.contexts.iter().find(|named| Some(named.name.as_str()) == context);
    let cluster = named.and_then(|named| Some(&named.context.as_ref()?.cluster));
    let named = file.clusters.iter().find(|named| Some(&named.name) == cluster);
    let url = named.and_then(|named| named.cluster.as_ref()?.proxy_url.as_deref());
    config.proxy_url = match url.filter(|url| !url.is_empty()) {
        Some(url) => url.parse().ok(),
        None => environment_proxy(&config.cluster_url, |name| std::env::var(name).ok()),
    };
}

/// The proxy of the environment for a server, as Go's `http.ProxyFromEnvironment`: none for
/// loopback addresses.
fn environment_proxy(
    server: &http::Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<http::Uri> {
    let either = |upper: &str| {
        let names = [upper.to_owned(), upper.to_lowercase()];
        names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))
    };
    let proxy = either("HTTPS_PROXY")?;
    let proxy = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    let host = server.host()?.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address: IpAddr| address.is_loopback()) {
        return None;
    }
    let excepted = either("NO_PROXY").unwrap_or_default();
    Matcher::builder().https(&*proxy).no(excepted).build().intercept(server)?;
    proxy.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_of_the_environment_is_chosen_by_the_server() {
        for (server, no_proxy, proxied) in [
            ("https://api.example:6443", "", true),
            ("https://api.example:6443", "proxy.corp,.corp", true),
            ("https://api.example:6443", "api.example", false),
            ("https://api.example:6443", "other,.example", false),
            ("https://10.1.2.3:6443", "10.0.0.0/8", false),
            ("https://10.1.2.3:6443", "192.168.0.0/16", true),
            ("https://127.0.0.1:6443", "", false),
            ("https://[::1]:6443", "", false),
            ("https://localhost:6443", "", false),
            ("http://api.example:8001", "", false),
        ] {
            for (name, value) in [
                ("HTTPS_PROXY", "http://me:secret@proxy.corp:3128"),
                ("https_proxy", "proxy.corp:3128"),
            ] {
                let variable = |asked: &str| match asked {
                    "no_proxy" => Some(no_proxy.to_owned()),
                    asked => (asked == name).then(|| value.to_owned()),
                };
                let proxy = environment_proxy(&server.parse().unwrap(), variable);
                let proxy = proxy.map(|proxy| proxy.to_string().replace("http://", ""));
                let expected = proxied.then(|| format!("{}/", value.replace("http://", "")));
                assert_eq!(proxy, expected, "{server} without {no_proxy:?}");
            }
        }
    }

    #[test]
    fn the_proxy_of_a_cluster_takes_precedence_over_the_environment() {
        let file: Kubeconfig = serde_saphyr::from_str(
            "current-context: a\n\
             clusters: [{name: a, cluster: {server: 'https://a', proxy-url: 'http://p:1'}}]\n\
             contexts: [{name: a, context: {cluster: a, user: a}}]\n",
        )
        .unwrap();
        let mut config = kube::Config::new("https://a".parse().unwrap());
        choose_proxy(&mut config, &file, None);
        assert_eq!(config.proxy_url.unwrap().to_string(), "http://p:1/");
        let mut config = kube::Config::new("https://localhost".parse().unwrap());
        choose_proxy(&mut config, &file, Some("other"));
        assert_eq!(config.proxy_url, None);
    }
}

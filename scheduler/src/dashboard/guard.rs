//! Checks of a request's origin: the page answers no request that another site made.
//!
//! - **DNS rebinding**: a site lets its own name point to this machine, and asks in that name. So `Host` must
//!   be an IP address, `localhost`, or a configured name.
//! - **Cross-site requests**: a browser names the site that asks in `Origin` and `Sec-Fetch-Site`. It must be
//!   the page itself, with the same port: another user's server may be at another port of this machine.

use std::net::{IpAddr, Ipv6Addr};

use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};

use crate::operation::plain;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Reason to refuse a request, as a sentence for the answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Foreign {
    #[error("the request has no Host, or more than one; use a current browser")]
    NoHost,
    #[error(
        "this page is not served as `{0}`; open it by the address that `gpushare-ctl dashboard` prints, or \
         add the name to `hosts` in [dashboard] of the configuration"
    )]
    Host(String),
    #[error(
        "the site {0} asks, and only the page itself may; open the page that `gpushare-ctl dashboard` prints"
    )]
    Origin(String),
}

/// Returns the host that a request is for. Refuses one that the page is not served as.
pub(super) fn check_host<'a>(headers: &'a HeaderMap, hosts: &[String]) -> Result<&'a str, Foreign> {
    let host = only(headers, HOST)?.ok_or(Foreign::NoHost)?;
    match is_served_as(host, hosts) {
        true => Ok(host),
        false => Err(Foreign::Host(plain(host))),
    }
}

/// Refuses a request that another site than the page at `host` makes.
pub(super) fn check_origin(headers: &HeaderMap, host: &str) -> Result<(), Foreign> {
    if let Some(origin) = only(headers, ORIGIN)? {
        let at = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if at.is_none_or(|at| !at.eq_ignore_ascii_case(host)) {
            return Err(Foreign::Origin(plain(origin)));
        }
    }
    match only(headers, FETCH_SITE)? {
        None | Some("same-origin" | "none") => Ok(()),
        Some(site) => Err(Foreign::Origin(format!("({})", plain(site)))),
    }
}

/// Returns the value of a header that may be there once.
fn only(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Foreign> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| Foreign::NoHost),
        (Some(_), Some(_)) => Err(Foreign::NoHost),
    }
}

/// Whether the page is served to this host, which may have a port. An address is no name that a site could
/// let point elsewhere.
fn is_served_as(host: &str, hosts: &[String]) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let literal = rest.split_once(']');
        return literal.is_some_and(|(ip, port)| ip.parse::<Ipv6Addr>().is_ok() && is_port(port));
    }
    let name = host.find(':').map_or(host, |at| &host[..at]);
    if !is_port(&host[name.len()..]) {
        return false;
    }
    let known = |name: &str| name == "localhost" || hosts.iter().any(|host| host == name);
    matches!(name.parse(), Ok(IpAddr::V4(_))) || known(&name.to_ascii_lowercase())
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn asked(headers: &[(HeaderName, &str)]) -> Result<(), Foreign> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        let host = check_host(&map, &["gpu1.example.org".to_owned()])?;
        check_origin(&map, host)
    }

    #[test]
    fn the_page_is_served_to_addresses_and_known_names_only() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9403",
            "localhost:1",
            "LOCALHOST",
            "[::1]:9403",
            "[::1]",
            "10.1.2.3:80",
            "GPU1.example.org:9403",
        ] {
            assert_eq!(asked(&[(HOST, host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9403",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:9403.evil.example",
            "127.0.0.1:9403:1",
            "user@127.0.0.1",
            "[::1].evil.example",
            "[evil]",
            "gpu2.example.org",
            "2130706433",
            "",
        ] {
            assert_eq!(asked(&[(HOST, host)]), Err(Foreign::Host(host.to_owned())), "{host}");
        }
        assert_eq!(asked(&[]), Err(Foreign::NoHost));
        assert_eq!(asked(&[(HOST, "localhost"), (HOST, "localhost")]), Err(Foreign::NoHost));
    }

    #[test]
    fn only_the_page_itself_may_ask() {
        let by = |origin: &str| asked(&[(HOST, "127.0.0.1:9403"), (ORIGIN, origin)]);
        assert_eq!(by("http://127.0.0.1:9403"), Ok(()));
        assert_eq!(by("https://127.0.0.1:9403"), Ok(()));
        for origin in [
            "null",
            "http://evil.example",
            "http://127.0.0.1:8888",
            "http://127.0.0.1",
            "http://localhost:9403",
            "file://127.0.0.1:9403",
            "http://127.0.0.1:9403/",
        ] {
            assert_eq!(by(origin), Err(Foreign::Origin(origin.to_owned())), "{origin}");
        }
        let from = |site: &str| asked(&[(HOST, "127.0.0.1:9403"), (FETCH_SITE, site)]);
        assert_eq!((from("same-origin"), from("none")), (Ok(()), Ok(())));
        for site in ["cross-site", "same-site", "what"] {
            assert!(matches!(from(site), Err(Foreign::Origin(_))), "{site}");
        }
    }
}

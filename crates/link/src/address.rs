//! Where a link leads, as people write it.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::LinkError;

/// The address of a link; prints and parses as `tcp://HOST:PORT` (host name, IPv4, or IPv6 in brackets) and `mem:NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkAddress {
    /// TCP.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// Port; 0 asks a listener for any free one.
        port: u16,
    },
    /// Within this process.
    Memory {
        /// Name of the listener.
        name: String,
    },
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Memory { name } => write!(f, "mem:{name}"),
        }
    }
}

impl FromStr for LinkAddress {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let wrong = |cause| LinkError::Address {
            text: text.to_owned(),
            cause,
        };
        if let Some(name) = text.strip_prefix("mem:") {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return Err(wrong("the name may have letters, digits, `-`, `_` and `.`"));
            }
            return Ok(Self::Memory {
                name: name.to_owned(),
            });
        }
        let rest = text
            .strip_prefix("tcp://")
            .ok_or_else(|| wrong("it must start with `tcp://` or `mem:`"))?;
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or_else(|| wrong("the port is missing"))?;
        // `u16::from_str` would take a sign too.
        let port = Some(port)
            .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|port| port.parse().ok())
            .ok_or_else(|| wrong("the port must be a number from 0 to 65535"))?;
        let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
            Some(Some(host)) => {
                let (ip, zone) = host.split_once('%').unwrap_or((host, "0"));
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if ip.parse::<Ipv6Addr>().is_err() || zone.is_empty() || !zone.chars().all(plain) {
                    return Err(wrong("what stands in brackets is no IPv6 address"));
                }
                host
            }
            Some(None) => return Err(wrong("`[` without `]`")),
            None if host.contains(':') => {
                return Err(wrong(
                    "an IPv6 address must stand in brackets: `tcp://[::1]:7000`",
                ));
            }
            None => host,
        };
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        if host
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || "/@?#[]".contains(c))
        {
            return Err(wrong("the host has characters that no host name has"));
        }
        Ok(Self::Tcp {
            host: host.to_owned(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_and_parse() {
        for text in [
            "tcp://127.0.0.1:7000",
            "tcp://[::1]:7000",
            "tcp://[fe80::1%eth0]:0",
            "tcp://phone.local:65535",
            "mem:host-stage_0.a",
        ] {
            assert_eq!(text.parse::<LinkAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_addresses_say_what_is_wrong() {
        for (text, cause) in [
            ("127.0.0.1:7000", "must start with"),
            ("udp://a:1", "must start with"),
            ("tcp://phone", "port is missing"),
            ("tcp://phone:", "port must be a number"),
            ("tcp://phone:+80", "port must be a number"),
            ("tcp://phone:65536", "port must be a number"),
            ("tcp://:80", "host is missing"),
            ("tcp://::1:80", "must stand in brackets"),
            ("tcp://[::1:80", "`[` without `]`"),
            ("tcp://[phone]:80", "no IPv6 address"),
            ("tcp://[::1%]:80", "no IPv6 address"),
            ("tcp://a b:80", "characters"),
            ("tcp://user@a:80", "characters"),
            ("mem:", "letters, digits"),
            ("mem:a/b", "letters, digits"),
            ("", "must start with"),
        ] {
            let error = text.parse::<LinkAddress>().unwrap_err().to_string();
            assert!(error.contains(cause), "{text}: {error}");
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}

"""The servers that shards may come from, and what their errors mean.

fsspec speaks to all of them.  A filesystem is made on first use in each process, for its event
loop does not survive a fork.  Whatever the protocol, errors are sorted by what they mean for us:
the file is not there, we may not have it, or asking again may help.
"""

from __future__ import annotations

import functools
import importlib
import os
import ssl
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from mae.errors import ConfigError, DataError

# Choice: servers of files alone.  Others that fsspec knows run shells (ssh), unpack archives or
# chain several of these; none of them is needed to read a shard.
SCHEMES = ("http", "https", "s3", "gs", "gcs", "file", "memory")
_FAMILY = {"https": "http", "gcs": "gs"}
_CONNECT_S = 30.0
_PASSING_STATUS = (408, 425, 429)  # request timeout, too early, too many requests
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")  # botocore
_NO_ADDRESS = ("InvalidURL", "ParamValidationError")  # aiohttp's, botocore's
_LIBRARIES = ("aiohttp", "aiobotocore", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3")

Kind = Literal["missing", "forbidden", "refused", "passing", "defect"]


def scheme(url: str) -> str:
    """Return the scheme of a URL.

    Raises:
        DataError: If it is none of `SCHEMES`.
    """
    found = url.partition("://")[0].lower()
    if found not in SCHEMES:
        raise DataError(
            f"{public(url)} has the scheme {found!r}; allowed: {', '.join(SCHEMES)}. Copy the "
            f"files to one of these, or to a local disk"
        )
    return found


def public(url: str) -> str:
    """Return the URL as it may be shown: without password and without the query's secrets."""
    parts = urlsplit(url)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, address, parts.path, "…" if parts.query else "", ""))


def has_query(url: str) -> bool:
    """Return whether a URL of a web server has a query; names in object stores may have a ``?``."""
    found = url.partition("://")[0].lower()
    return _FAMILY.get(found, found) == "http" and bool(urlsplit(url).query)


def check_directory(url: str) -> None:
    """Refuse a directory with a query: the names of its files would become part of the query.

    Args:
        url: That of the directory, or of a file in it as they were joined.

    Raises:
        ConfigError: If it has a query.
    """
    if has_query(url):
        raise ConfigError(
            f"{public(url)} is a directory with a query, to which no file names can be joined; "
            f"allowed: a URL without ?…. If that is how you log in, {_credentials(url)}"
        )


def filesystem(url: str, *, stall_s: float) -> Any:
    """Return this process's fsspec filesystem for a URL.

    Args:
        url: The URL.
        stall_s: Seconds without a byte after which a request has failed.

    Raises:
        DataError: If the scheme is not allowed.
        ConfigError: If a library is missing.
    """
    found = scheme(url)
    return _filesystem(os.getpid(), _FAMILY.get(found, found), stall_s)


@functools.cache  # keyed by process; what a forked child inherits is left alone, not closed
def _filesystem(process: int, family: str, stall_s: float) -> Any:
    del process
    try:
        fsspec: Any = importlib.import_module("fsspec")
        given = fsspec.config.conf.get(family, {})
        made = fsspec.filesystem(
            family,
            skip_instance_cache=True,  # others in this process may want other settings
            **_settings(family, given, stall_s),
        )
    except ImportError as error:
        raise ConfigError(
            f"reading {family}:// needs a library that is not installed ({error}); run: "
            f"pip install 'domain-mae[remote]'"
        ) from error
    if hasattr(made, "retries"):
        made.retries = 1  # we ask again ourselves, and say so
    return made


def _settings(family: str, given: dict[str, Any], stall_s: float) -> dict[str, Any]:
    """Return settings of ours below those that the user gave through fsspec's configuration."""
    connect_s = min(_CONNECT_S, stall_s)
    if family == "http":
        aiohttp: Any = importlib.import_module("aiohttp")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=stall_s)
        # Proxies and .netrc of the environment count; what arrives is stored as it is.
        ours = {"timeout": timeout, "trust_env": True, "auto_decompress": False}
        return {"client_kwargs": ours | given.get("client_kwargs", {})}
    if family == "s3":
        timeouts = {"connect_timeout": connect_s, "read_timeout": stall_s}
        ours = timeouts | {"retries": {"max_attempts": 0}}
        return {
            "config_kwargs": ours | given.get("config_kwargs", {}),
            "use_listings_cache": False,
        }
    return {"use_listings_cache": False} if family == "gs" else {}


def kind_of(error: Exception) -> Kind:
    """Return what an error of a filesystem means."""
    status = _status(error)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return "missing"
    name = type(error).__name__
    if isinstance(error, PermissionError) or status in (401, 403) or name in _NO_CREDENTIALS:
        return "forbidden"
    if status is not None and 300 <= status < 500 and status not in _PASSING_STATUS:
        return "refused"
    if isinstance(error, ssl.SSLCertVerificationError | IsADirectoryError | NotADirectoryError):
        return "refused"
    if name in _NO_ADDRESS:
        return "refused"
    modules = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    if isinstance(error, OSError) or not modules.isdisjoint(_LIBRARIES):
        return "passing"
    return "defect"


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status behind an error, if there is one."""
    while error is not None:
        response, library = getattr(error, "response", None), type(error).__module__
        found = getattr(error, "status", None)  # aiohttp's; its parser's errors have a `code`
        if isinstance(response, dict):  # botocore
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        elif library.startswith("gcsfs"):
            found = getattr(error, "code", None)
        if isinstance(found, int):
            return found
        error = error.__cause__
    return None


def final_error(error: Exception, url: str) -> Exception | None:
    """Return the error to raise at once, or None if asking again may help.

    Args:
        error: What the filesystem raised.
        url: What was asked for.
    """
    kind, shown = kind_of(error), public(url)
    if kind == "missing":
        return FileNotFoundError(f"{shown} does not exist")
    if kind == "forbidden":
        return DataError(f"{shown} may not be read ({describe(error)}); {_credentials(url)}")
    if kind == "refused":
        return DataError(
            f"{shown} was refused ({describe(error)}), and asking again will not help; correct the "
            f"URL or the server's settings"
        )
    return error if kind == "defect" else None


def describe(error: Exception) -> str:
    """Return an error in a few words, with the HTTP status where there is one."""
    status, name = _status(error), type(error).__name__
    text = " ".join(str(getattr(error, "message", "") or error).split())[:200]
    return f"{status} {text or name}" if status and str(status) not in text else text or name


def _credentials(url: str) -> str:
    family = _FAMILY.get(scheme(url), scheme(url))
    if family == "s3":
        return (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE in the environment, "
            "FSSPEC_S3_ENDPOINT_URL for a server that is not Amazon's, FSSPEC_S3_ANON=true for a "
            "public bucket; S3 also answers so for names that do not exist in buckets that you may "
            "not list"
        )
    if family == "gs":
        return (
            "set GOOGLE_APPLICATION_CREDENTIALS in the environment or run `gcloud auth "
            "application-default login`; FSSPEC_GS_TOKEN=anon for a public bucket"
        )
    if family == "http":
        return (
            "put user and password into ~/.netrc, or a header into the environment: "
            """FSSPEC_HTTP='{"client_kwargs": {"headers": {"Authorization": "Bearer …"}}}'"""
        )
    return "change the permissions of that file"

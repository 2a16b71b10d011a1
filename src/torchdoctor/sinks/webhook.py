"""A web address that accepts JSON by POST: Slack, Discord, compatible services, or a program of your own.

The address is a secret, because whoever knows it can post: it appears in no log, note, journal or error. It may be the
name of an environment variable (``webhook:$SLACK_URL``). Only a whole name is replaced, so a configuration file that
came with somebody's code cannot put other variables into an address.
"""

from __future__ import annotations

import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from torchdoctor.errors import SettingsError
from torchdoctor.journal.lines import encode
from torchdoctor.records import Record
from torchdoctor.reports.report import Report
from torchdoctor.sinks.messages import Bulletin, Message, as_markdown, in_one, summary
from torchdoctor.sinks.sink import SinkError, Subject

TIMEOUT = 5.0
"""Seconds to wait for the server at each step of the exchange."""
INTERVAL = 30.0
"""Seconds between two posts: findings in between are sent together."""
AT_ONCE = 10
"""Most messages in one post; the rest are only counted."""
SLACK_LIMIT, DISCORD_LIMIT = 3000, 1900
"""Most characters of a text."""

Form = Callable[[Sequence[Message]], Any]


class Webhook:
    """Posts messages to an address."""

    interval = INTERVAL
    pushes = True

    def __init__(self, url: str, form: Form, subject: Subject) -> None:
        self._url, self._form, self._subject = url, form, subject
        self._bulletin = Bulletin(subject)

    def __repr__(self) -> str:
        return f"<Webhook {urlsplit(self._url).hostname}>"

    def take(self, records: Sequence[Record]) -> None:
        """Post new messages together."""
        self._bulletin.read(records)
        waiting = self._bulletin.waiting
        if self._form is not as_json:  # people want to hear of problems, programs also of their end
            kept = [message for message in waiting if message.event != "closed"]
            waiting.clear()
            waiting.extend(kept)
        if waiting:
            self._post(tuple(waiting))
            waiting.clear()

    def close(self, report: Report | None) -> None:
        """Post the summary, unless the run was healthy."""
        last = summary(report, self._subject)
        if last is not None:
            self._post((last,))

    def _post(self, messages: Sequence[Message]) -> None:
        data = encode(self._form(messages)).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "torchdoctor"}
        try:
            request = urllib.request.Request(self._url, data, headers, method="POST")
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT):
                return
        except urllib.error.HTTPError as error:
            error.close()
            raise SinkError(f"the server answered {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:  # the text of a ValueError may hold the address
            raise SinkError(_reason(error)) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would tell a third party what is found here."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Do not follow: the answer is an error."""


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {TIMEOUT:g} seconds"
    if isinstance(cause, ssl.SSLError):
        return f"no secure connection: {cause.reason or 'the handshake failed'}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(cause).__name__


def as_json(messages: Sequence[Message]) -> dict[str, Any]:
    """For programs: every field, and a ``text`` on top, which many chat servers display."""
    return {
        "source": "torchdoctor",
        "text": _together(messages, _plain),
        "messages": [item.to_dict() for item in messages],
    }


def as_slack(messages: Sequence[Message]) -> dict[str, Any]:
    """For Slack and compatible services (Mattermost, Rocket.Chat)."""
    return {"text": _cut(_together(messages, _slack), SLACK_LIMIT)}


def as_discord(messages: Sequence[Message]) -> dict[str, Any]:
    """For Discord; names in the run never mention anybody."""
    return {"content": _cut(_together(messages, as_markdown), DISCORD_LIMIT), "allowed_mentions": {"parse": []}}


def _together(messages: Sequence[Message], form: Callable[[Message], str]) -> str:
    texts = [form(item) for item in in_one(messages)[:AT_ONCE]]
    return "\n\n".join([*texts, f"and {len(messages) - AT_ONCE} more"][: len(texts) + (len(messages) > AT_ONCE)])


def _plain(message: Message) -> str:
    return f"{message.level} {message.text}"


def _slack(message: Message) -> str:
    code = message.code.replace("```", "'''")
    lines = [f"*{message.level}* {message.headline}", message.advice, *(f"• {item}" for item in message.details)]
    lines += [f"```\n{code}\n```"] if code else []
    return "\n".join(filter(None, lines)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def open_webhook(target: str, subject: Subject) -> Webhook:
    """``webhook:URL``: the host decides the format."""
    url = address(target, "webhook")
    host = urlsplit(url).hostname or ""
    path = urlsplit(url).path
    if host == "hooks.slack.com":
        return Webhook(url, as_slack, subject)
    if host in ("discord.com", "discordapp.com") and path.startswith("/api/webhooks"):
        return Webhook(url, as_discord, subject)
    return Webhook(url, as_json, subject)


def open_slack(target: str, subject: Subject) -> Webhook:
    """``slack:URL``, on any host."""
    return Webhook(address(target, "slack"), as_slack, subject)


def open_discord(target: str, subject: Subject) -> Webhook:
    """``discord:URL``, on any host."""
    return Webhook(address(target, "discord"), as_discord, subject)


def address(target: str, sink: str) -> str:
    """The address of a webhook; an error about it never repeats it.

    >>> address("ftp://example.org/secret", "webhook")
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SettingsError: the address of webhook must begin with https:// or http:// and name a host.
    """
    named = re.fullmatch(r"\$(?:\{(\w+)\}|(\w+))", target)
    if named:
        variable = named[1] or named[2]
        target = os.environ.get(variable, "").strip()
        if not target:
            raise SettingsError(f"the environment variable {variable} for the sink {sink} is not set.")
    try:
        parts = urlsplit(target)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and re.fullmatch(r"[!-~]+", target)
        _ = parts.port
    except ValueError:
        usable = None
    if not usable:
        raise SettingsError(f"the address of {sink} must begin with https:// or http:// and name a host.")
    return target

"""A Hub on the loopback interface: repositories, commits, uploads of large files, and downloads.

It implements the requests of huggingface_hub for `upload_folder` without Xet and for `snapshot_download`. It ends with
its context::

    with hub_stub() as hub:
        …set HF_ENDPOINT to hub.url…
        hub.files("someone/probe")
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

TOKEN = "hf_very_secret_0123456789"


@dataclass
class Hub:
    """A running stub.

    Attributes:
        url: Address for HF_ENDPOINT.
        commits: Files by path, by commit, by repository, in order.
        private: Repositories for which only requests with `TOKEN` find anything.
        gated: Repositories that nobody may download.
        read_only: Organisations in which `TOKEN` may create and change nothing.
        broken: Uploads of large files break if true.
        requests: Method, path and token of every request.
        created: Bodies of the requests that created repositories.
        large: Uploaded large files, by SHA-256.
    """

    url: str = ""
    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    read_only: set[str] = field(default_factory=set)
    broken: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    large: dict[str, bytes] = field(default_factory=dict)

    def add(self, repo: str, files: dict[str, bytes]) -> str:
        """Add a commit to a repository, which is created if necessary. Returns the id of the commit."""
        commits = self.commits.setdefault(repo, {})
        commit = sha1(f"{repo}{len(commits)}".encode()).hexdigest()
        commits[commit] = {**(list(commits.values())[-1] if commits else {}), **files}
        return commit

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """Return the files of a revision. A repository without a commit has none."""
        commits = self.commits[repo]
        return commits[revision] if revision in commits else list(commits.values())[-1] if commits else {}

    def commit(self, repo: str, revision: str = "main") -> str:
        """Return the id of a commit."""
        commits = self.commits[repo]
        return revision if revision in commits else list(commits)[-1] if commits else "0" * 40


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.headers = status, {"X-Error-Code": code, "X-Error-Message": message}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def _handle(self) -> None:
        body = self._body()
        token = self.headers.get("authorization", "").removeprefix("Bearer ") or None
        self.hub.requests.append((self.command, self.path, token))
        try:
            self._route(urlsplit(self.path).path, body, token)
        except _Refused as refused:
            self._send(refused.status, b"", refused.headers)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            if self.hub.broken and self.command == "PUT":
                self.rfile.read(100)
                self.connection.close()
                return b""
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _route(self, path: str, body: bytes, token: str | None) -> None:
        hub = self.hub
        if self.hub.broken and self.command == "PUT":
            self.close_connection = True
        elif path == "/api/repos/create":
            self._create(json.loads(body), token)
        elif path == "/api/validate-yaml":
            head = json.loads(body)["content"].split("---\n")[1]
            valid = isinstance(yaml.safe_load(head), dict)
            self._json({} if valid else {"errors": [{"message": "no metadata"}]}, 200 if valid else 400)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
            self._check(found[1], token, write=True)
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in files}
            self._json({"files": [{"path": name, "uploadMode": modes[name], "shouldIgnore": False} for name in files]})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._check(found[1], token, write=True)
            objects = [
                {**one, "actions": {"upload": {"href": f"{hub.url}/large/{one['oid']}?X-Signature=hush"}}}
                for one in json.loads(body)["objects"]
            ]
            self._json({"transfer": "basic", "objects": objects})
        elif self.command == "PUT" and path.startswith("/large/"):
            assert sha256(body).hexdigest() == path.removeprefix("/large/")
            hub.large[path.removeprefix("/large/")] = body
            self._json({})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            self._check(found[1], token, write=True)
            self._commit(found[1], [json.loads(line) for line in body.splitlines()])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            self._check(found[1], token)
            self._json([_entry(name, content) for name, content in hub.files(found[1], found[2]).items()])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._check(found[1], token, found[2])
            siblings = [{"rfilename": name} for name in hub.files(found[1], found[2] or "main")]
            sha = hub.commit(found[1], found[2] or "main")
            self._json({"id": found[1], "sha": sha, "private": False, "tags": [], "siblings": siblings})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._check(found[1], token, download=True)
            self._file(found[1], found[2], found[3])
        else:
            raise _Refused(404, "", f"no such request: {self.command} {path}")

    def _create(self, given: dict[str, Any], token: str | None) -> None:
        if token != TOKEN:
            raise _Refused(401, "", "Invalid username or password.")
        if given["organization"] in self.hub.read_only:
            raise _Refused(403, "", "You don't have the rights to create a model under this namespace")
        repo = f"{given['organization']}/{given['name']}"
        exists = repo in self.hub.commits
        self.hub.created.append(given)
        self.hub.commits.setdefault(repo, {})
        self._json({"url": f"{self.hub.url}/{repo}"}, 409 if exists else 200)

    def _check(
        self, repo: str, token: str | None, revision: str | None = None, write: bool = False, download: bool = False
    ) -> None:
        hub = self.hub
        if token not in (None, TOKEN):
            raise _Refused(401, "", "Invalid credentials in Authorization header")
        if repo not in hub.commits or (repo in hub.private and token != TOKEN):
            raise _Refused(404 if token else 401, "RepoNotFound", "Repository not found")
        if revision not in (None, "main", *hub.commits[repo]):
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if download and repo in hub.gated:
            raise _Refused(403, "GatedRepo", f"Access to model {repo} is restricted.")
        if write and (token != TOKEN or repo.split("/")[0] in hub.read_only):
            raise _Refused(403, "", "Forbidden: you must use a write token to upload to a repository.")

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        assert lines[0]["key"] == "header"
        files = {}
        for line in lines[1:]:
            value = line["value"]
            is_large = line["key"] == "lfsFile"
            files[value["path"]] = self.hub.large[value["oid"]] if is_large else base64.b64decode(value["content"])
        commit = self.hub.add(repo, files)
        url = f"{self.hub.url}/{repo}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _file(self, repo: str, revision: str, name: str) -> None:
        files = self.hub.files(repo, revision)
        if name not in files:
            raise _Refused(404, "EntryNotFound", "Entry not found")
        entry = _entry(name, files[name])
        etag = entry.get("lfs", entry)["oid"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self.hub.commit(repo, revision)}
        self._send(200, files[name], headers)

    def _json(self, content: Any, status: int = 200) -> None:
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def _entry(name: str, content: bytes) -> dict[str, Any]:
    """Describe a file as in the Hub's list of files."""
    blob = sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": blob}
    if name.endswith(".safetensors"):
        entry["lfs"] = {"oid": sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


@contextmanager
def hub_stub() -> Iterator[Hub]:
    """Run a stub in a thread."""
    hub = Hub()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{http.server_port}"
    thread = Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def use_in_this_process(hub: Hub, home: Path, patch: pytest.MonkeyPatch, token: str | None = TOKEN) -> None:
    """Use the stub and an empty cache in this process, in which huggingface_hub has already read the environment."""
    settings = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }
    for name, value in settings.items():
        patch.setattr(f"huggingface_hub.constants.{name}", value)
    patch.delenv("HF_TOKEN", raising=False)
    if token is not None:
        patch.setenv("HF_TOKEN", token)


def environment(hub: Hub, home: str, token: str | None = TOKEN) -> dict[str, str]:
    """Return the environment variables with which a process uses the stub and an empty cache."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": home, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    return {**settings, **({} if token is None else {"HF_TOKEN": token})}

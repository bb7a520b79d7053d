"""A stand-in for the Hugging Face Hub on this machine: what huggingface_hub asks of it to push and pull a dataset."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse


class Hub:
    """Repositories in memory, by id: private or not, and the files of each commit; what was sent is counted."""

    def __init__(self):
        self.private: dict[str, bool] = {}
        self.commits: dict[str, list[dict[str, bytes]]] = {}
        self.objects: dict[str, bytes] = {}
        self.fail_after = 10**9  # uploads
        self.uploads: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args) -> None:
                pass

            def do_GET(self) -> None:
                hub.get(self)

            def do_HEAD(self) -> None:
                hub.get(self)

            def do_POST(self) -> None:
                hub.post(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

            def do_PUT(self) -> None:
                hub.put(self, self.rfile.read(int(self.headers["Content-Length"])))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, repository: str, revision: str = "main") -> dict[str, bytes]:
        commits = self.commits[repository]
        return commits[-1 if revision in ("main", "None") else int(revision, 16) - 1]

    def put(self, request, body: bytes) -> None:
        oid = request.path.rsplit("/", 1)[-1]
        if len(self.uploads) >= self.fail_after:
            return _answer(request, 403, {"error": "no more uploads today"})
        self.uploads.append(oid)
        assert hashlib.sha256(body).hexdigest() == oid
        self.objects[oid] = body
        return _answer(request, 200, {})

    def post(self, request, body: bytes) -> None:
        path = urlparse(request.path).path
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
            assert asked["type"] == "dataset"
            status = 409 if name in self.commits else 200
            self.private.setdefault(name, asked.get("private") or asked.get("visibility") == "private")
            self.commits.setdefault(name, [{".gitattributes": b"*.npy filter=lfs"}])
            return _answer(request, status, {"url": f"{self.url}/datasets/{name}", "error": "it exists"})
        if path == "/api/validate-yaml":
            return _answer(request, 200, {"errors": [], "warnings": []})
        if found := re.fullmatch(r"/datasets/(.+)\.git/info/lfs/objects/batch", path):
            return _answer(
                request, 200, {"transfer": "basic", "objects": [*map(self._action, json.loads(body)["objects"])]}
            )
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/preupload/main", path):
            return _answer(request, 200, {"files": [_mode(file) for file in json.loads(body)["files"]]})
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/commit/main", path):
            self._commit(found[1], [json.loads(line) for line in body.splitlines()])
            number = f"{len(self.commits[found[1]]):040x}"
            url = f"{self.url}/datasets/{found[1]}/commit/{number}"
            return _answer(request, 200, {"commitUrl": url, "commitOid": number, "success": True})
        return _answer(request, 404, {"error": path})

    def _action(self, wanted) -> dict:
        there = wanted["oid"] in self.objects
        actions = {} if there else {"upload": {"href": f"{self.url}/lfs/{wanted['oid']}"}}
        return {**wanted, "actions": actions} if actions else dict(wanted)

    def _commit(self, repository: str, lines: list[dict]) -> None:
        made = dict(self.commits[repository][-1])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                made[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                made[value["path"]] = self.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                made.pop(value["path"])
        self.commits[repository].append(made)

    def get(self, request) -> None:
        path = unquote(urlparse(request.path).path)
        found = re.fullmatch(r"(?:/api)?/datasets/([^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+)(?:/(.+))?)?", path)
        if not found or found[1] not in self.commits:
            return _answer(request, 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        files = self.files(found[1], found[3] or "main")
        commit = f"{len(self.commits[found[1]]) if found[3] in (None, 'main') else int(found[3], 16):040x}"
        if found[2] == "resolve":
            return self._send(request, files.get(found[4]), commit)
        if found[2] == "tree":
            rows = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in files.items()]
            return _answer(request, 200, rows)
        siblings = [{"rfilename": name} for name in files]
        return _answer(
            request, 200, {"id": found[1], "sha": commit, "siblings": siblings, "private": False, "tags": []}
        )

    def _send(self, request, data: bytes | None, commit: str) -> None:
        if data is None:
            return _answer(request, 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        return _answer(request, 200, data, {"ETag": tag, "X-Repo-Commit": commit, "Accept-Ranges": "bytes"})


def _mode(file: dict) -> dict:
    large = file["path"].endswith((".npy", ".faiss", ".safetensors"))
    return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}


def _answer(request, status: int, value, headers=()) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    request.send_response(status)
    for name, text in {"Content-Type": "application/json", **dict(headers)}.items():
        request.send_header(name, text)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(data)

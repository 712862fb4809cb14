"""Files that every process of a fleet reads: settings, credentials, journals, logs."""

import datetime
import json
import time
from pathlib import Path

import yaml

from actor.config import PrivacyFloorConfig
from actor.federation.privacy_floor import PrivacyFloor
from parlmesh.blobs.folder import BlobFolder
from parlmesh.blobs.references import name_of
from parlmesh.blobs.store import PROOF, Blobs
from parlmesh.config import load
from parlmesh.high_water_mark import Witness
from parlmesh.local.process_configs import RunPaths, read_incarnations
from parlmesh.postgres.connection_settings import Target
from parlmesh.processes.child_process import has_served, last_words, serving_port
from parlmesh.rpc.credentials import _token
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.certificates import hosts_of
from parlmesh.security.config import IssuerConfig
from parlmesh.security.openid_tokens import Keys
from parlmesh.security.pem_files import read_pair, write_authority, write_certificate
from parlmesh.security.renewal import revoke
from parlmesh.security.revocation import read_revoked
from parlmesh.security.tokens import read_rows, write_token
from parlmesh.telemetry.log_files import line_of
from scheduler.config import SchedulerConfig
from scheduler.journal import records

from .file_damage import Format


def task_journal(folder: Path) -> Format:
    file = folder / "batch"
    file.write_bytes(records.seal(bytes(range(200))))
    return Format(file, lambda file: records.unseal(file.read_bytes(), "batch 1"))


def tokens(folder: Path) -> Format:
    for role in Role:
        write_token(folder, role.value, role, force=False, namespace="team-a")
    return Format(folder / "tokens.yaml", read_rows)


def revoked(folder: Path) -> Format:
    (folder / "revoked").write_text(f"{'ab' * 32}\n0x1234 # lost\n\n")
    return Format(folder / "revoked", read_revoked)


def configuration(folder: Path) -> Format:
    sections = {"listen": {"port": 1}, "queue": {"max_tasks": 5}, "leases": {"heartbeat_seconds": 1.5}}
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(sections))
    return Format(folder / "scheduler.yaml", lambda file: load(SchedulerConfig, file=file, prefix="NOTHING"))


def privacy_ledger(folder: Path) -> Format:
    file = folder / "spent.json"
    floor = PrivacyFloor(PrivacyFloorConfig(epsilon_budget=10.0, ledger=file))
    floor.spend("node-1", 5.0)
    return Format(file, lambda file: floor.spend("node-1", 1e6))


def key_set(folder: Path) -> Format:
    file = folder / "keys.json"
    rsa = {"kty": "RSA", "kid": "a", "alg": "RS256", "n": "u1SU1LfVLPHCozMxH2Mo" * 13, "e": "AQAB"}
    okp = {"kty": "OKP", "kid": "b", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    file.write_text(json.dumps({"keys": [rsa, okp]}))
    config = IssuerConfig(issuer="i", audience="a", keys=file, roles={"r": Role.READER})
    return Format(file, lambda file: Keys(config, time.monotonic).renew(missing=True))


def witness(folder: Path) -> Format:
    made = Witness(folder / "store")
    made.begin(1, 5)
    made.note(9)
    made.close()
    return Format(made.path, lambda file: Witness(folder / "store").read())


def incarnations(folder: Path) -> Format:
    paths = RunPaths(folder)
    paths.incarnations.parent.mkdir(parents=True, exist_ok=True)
    paths.incarnations.write_text("actor-0: 3\nactor-1: 17\n")
    return Format(paths.incarnations, lambda file: read_incarnations(paths))


def certificate(folder: Path) -> Format:
    write_authority(folder, name="ours", days=1, force=False)
    file, key = write_certificate(folder, "server", role=None, hosts=["127.0.0.1"], days=1, force=False)
    return Format(file, lambda file: hosts_of(read_pair(file, key).certificate))


def private_key(folder: Path) -> Format:
    certificate, key = write_authority(folder, name="ours", days=1, force=False)
    return Format(key, lambda file: read_pair(certificate, file))


def log_line(folder: Path) -> Format:
    line = {"time": "1", "level": "error", "event": "lost", "node": {"name": "a"}, "exception": "Traceback\nE"}
    (folder / "log").write_text(json.dumps(line))
    return Format(folder / "log", lambda file: line_of("actor-0", file.read_text(errors="replace")))


def token_of_a_caller(folder: Path) -> Format:
    (folder / "token").write_text("pm_abcdefgh\n")
    config = SecurityConfig(token_file=folder / "token")
    return Format(folder / "token", lambda file: _token(config))


def database_password(folder: Path) -> Format:
    (folder / "password").write_text("secret\n")
    place = Target("postgresql://parlmesh@localhost/parlmesh", password_file=folder / "password")
    return Format(folder / "password", lambda file: place.secret())


def revoked_by_hand(folder: Path) -> Format:
    """A list to which another certificate is added."""
    write_authority(folder, name="ours", days=1, force=False)
    write_certificate(folder, "actor", role=None, hosts=["127.0.0.1"], days=1, force=False)
    file = revoke(folder, "actor", now=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    return Format(file, lambda file: revoke(file.parent, "actor", now=datetime.datetime.now(datetime.UTC)))


def process_log(folder: Path) -> Format:
    """A file that a supervisor reads from a process that it started."""
    (folder / "log").write_text(json.dumps({"event": "serving", "port": 5, "address": "127.0.0.1:5"}) + "\n")
    return Format(folder / "log", lambda file: (serving_port(file, 0), has_served(file, 0), last_words(file)))


def blob(folder: Path) -> Format:
    data = bytes(range(200))
    name = name_of("w", "life", data)
    BlobFolder(folder).write(name, memoryview(data))
    return Format(BlobFolder(folder).file(name), lambda file: BlobFolder(folder).read(name, len(data)).sum())


def proof_of_blobs(folder: Path) -> Format:
    """A damaged proof proves nothing: arrays go inside messages."""
    (folder / PROOF).write_text("0123abcd")
    return Format(folder / PROOF, lambda file: Blobs().share(str(folder), "0123abcd", "w", 10, 1000))

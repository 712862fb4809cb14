import base64
import datetime
import json
from collections.abc import Sequence
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import Unauthenticated
from parlmesh.security import Identity, Role
from parlmesh.security.certificates import Pair, issue, make_authority
from parlmesh.security.signed_assertions import CLOCK_SKEW_SECONDS, LIFETIME_SECONDS, TYPE, Signer, Verifier, audience
from parlmesh.testing import HandClock

START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
DAY = 86_400.0
SERVICE = "parlmesh.v1.SchedulerService"
HOST = "scheduler.example"

AUTHORITY = make_authority("ours", days=1000, now=START)
FOREIGN = make_authority("ours", days=1000, now=START)
NODE = issue(AUTHORITY, "node-1", role=Role.ACTOR, days=100, now=START)


def clock(days: float = 1.0) -> HandClock:
    return HandClock(START.timestamp() + days * DAY)


def verifier(now: HandClock, hosts: Sequence[str] = (HOST,), authority: Pair = AUTHORITY) -> Verifier:
    return Verifier([authority.certificate], hosts, now)


def x5c(*certificates: x509.Certificate) -> list[str]:
    return [base64.b64encode(one.public_bytes(Encoding.DER)).decode() for one in certificates]


def forged(now: HandClock, pair: Pair = NODE, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    issued = int(now())
    body = {"aud": audience(HOST, SERVICE), "iat": issued, "exp": issued + LIFETIME_SECONDS, **claims}
    head = {"typ": TYPE, "x5c": x5c(pair.certificate), **(headers or {})}
    return jwt.encode(body, pair.key, algorithm="ES256", headers=head)


def refused(assertion: str, now: HandClock, service: str = SERVICE, **options: Any) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as error:
        verifier(now, **options).identity(assertion, service)
    return error.value


def test_a_signed_assertion_proves_the_name_and_role_of_the_certificate() -> None:
    now = clock()
    assertion = Signer([NODE.certificate], NODE.key, HOST, now).assertion(SERVICE)
    assert verifier(now).identity(assertion, SERVICE) == Identity("node-1", Role.ACTOR)


def test_a_signer_keeps_an_assertion_for_half_its_life_and_then_makes_another() -> None:
    now = clock()
    signer = Signer([NODE.certificate], NODE.key, HOST, now)
    check = verifier(now)
    first = signer.assertion(SERVICE)
    now.advance(LIFETIME_SECONDS / 2 - 1)
    assert signer.assertion(SERVICE) == first
    now.advance(2)
    second = signer.assertion(SERVICE)
    assert second != first
    assert check.identity(second, SERVICE) == check.identity(first, SERVICE)
    assert signer.assertion("parlmesh.v1.PolicyService") != second


def test_a_signer_whose_clock_was_set_back_makes_a_new_assertion() -> None:
    now = clock(2.0)
    signer = Signer([NODE.certificate], NODE.key, HOST, now)
    signer.assertion(SERVICE)
    now._now -= DAY
    assert verifier(now).identity(signer.assertion(SERVICE), SERVICE).name == "node-1"


@pytest.mark.parametrize(
    ("hosts", "host", "accepted"),
    [
        (["scheduler.example"], "scheduler.example", True),
        (["scheduler.example"], "Scheduler.Example", True),
        (["learner.example"], "scheduler.example", False),
        (["*.example"], "scheduler.example", True),
        (["*.example"], "a.scheduler.example", False),
        (["*.example"], "example", False),
        (["*.example"], ".example", False),
        (["localhost", "127.0.0.1", "::1"], "127.0.0.1", True),
        (["::1"], "0:0:0:0:0:0:0:1", True),
        (["10.0.0.1"], "10.0.0.2", False),
        ([], "scheduler.example", False),
    ],
)
def test_an_assertion_is_good_only_where_it_was_sent(hosts: list[str], host: str, accepted: bool) -> None:
    now = clock()
    assertion = Signer([NODE.certificate], NODE.key, host, now).assertion(SERVICE)
    if accepted:
        assert verifier(now, hosts).identity(assertion, SERVICE).name == "node-1"
    else:
        assert refused(assertion, now, hosts=hosts).reason == "WRONG_AUDIENCE"


def test_an_assertion_is_good_for_one_service() -> None:
    now = clock()
    check = verifier(now)
    assertion = Signer([NODE.certificate], NODE.key, HOST, now).assertion(SERVICE)
    for _ in range(2):  # also when it is remembered
        assert check.identity(assertion, SERVICE).name == "node-1"
        with pytest.raises(Unauthenticated) as error:
            check.identity(assertion, "parlmesh.v1.FleetService")
        assert error.value.reason == "WRONG_AUDIENCE"
        assert error.value.metadata == {"identity": "actor node-1"}


@pytest.mark.parametrize(
    "aud", [f"x{audience(HOST, SERVICE)}", HOST, "", f"parlmesh://{HOST}", f"parlmesh:///{SERVICE}"]
)
def test_a_strange_audience_is_wrong(aud: str) -> None:
    now = clock()
    assert refused(forged(now, aud=aud), now).reason == "WRONG_AUDIENCE"


def test_a_certificate_of_another_authority_proves_nothing() -> None:
    now = clock()
    pair = issue(FOREIGN, "node-1", role=Role.OPERATOR, days=100, now=START)
    error = refused(forged(now, pair), now)
    assert error.reason == "UNTRUSTED_CERTIFICATE"
    assert error.metadata == {}
    both = forged(now, pair, headers={"x5c": x5c(pair.certificate, FOREIGN.certificate)})
    assert refused(both, now).reason == "UNTRUSTED_CERTIFICATE"


def test_a_node_cannot_issue_certificates() -> None:
    now = clock()
    pair = issue(NODE, "boss", role=Role.OPERATOR, days=50, now=START)
    chained = forged(now, pair, headers={"x5c": x5c(pair.certificate, NODE.certificate)})
    assert refused(chained, now).reason == "UNTRUSTED_CERTIFICATE"


def test_an_expired_certificate_is_told_from_a_foreign_one() -> None:
    now = clock(101.0)
    error = refused(forged(now), now)
    assert (error.reason, error.metadata) == ("EXPIRED_CERTIFICATE", {"identity": "actor node-1"})
    foreign = issue(FOREIGN, "node-1", role=Role.ACTOR, days=10, now=START)
    assert refused(forged(now, foreign), now).reason == "UNTRUSTED_CERTIFICATE"


def test_a_certificate_of_the_future_proves_nothing() -> None:
    now = clock(-1.0)
    assert refused(forged(now), now).reason == "UNTRUSTED_CERTIFICATE"


def test_another_key_than_the_certificate_s_proves_nothing() -> None:
    now = clock()
    other = issue(AUTHORITY, "node-2", role=Role.ACTOR, days=100, now=START)
    stolen = forged(now, Pair(NODE.certificate, other.key))
    error = refused(stolen, now)
    assert (error.reason, error.metadata) == ("WRONG_SIGNATURE", {"identity": "actor node-1"})


def test_a_changed_claim_breaks_the_signature() -> None:
    now = clock()
    head, body, signature = forged(now).split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["aud"] = audience(HOST, "parlmesh.v1.FleetService")
    changed = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    assert refused(f"{head}.{changed}.{signature}", now, "parlmesh.v1.FleetService").reason == "WRONG_SIGNATURE"


def test_a_server_s_certificate_is_no_identity() -> None:
    now = clock()
    pair = issue(AUTHORITY, "learner", hosts=["learner.example"], days=100, now=START)
    assert refused(forged(now, pair), now).reason == "UNTRUSTED_CERTIFICATE"


def test_a_certificate_with_two_names_is_no_identity() -> None:
    now = clock()
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.UniformResourceIdentifier(f"spiffe://parlmesh/{role}/a") for role in ("actor", "operator")]
    extensions = [one for one in NODE.certificate.extensions if not isinstance(one.value, x509.SubjectAlternativeName)]
    builder = (
        x509.CertificateBuilder(extensions=extensions)
        .subject_name(NODE.certificate.subject)
        .issuer_name(AUTHORITY.certificate.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(START)
        .not_valid_after(START + datetime.timedelta(days=100))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    pair = Pair(builder.sign(AUTHORITY.key, hashes.SHA256()), key)
    assert refused(forged(now, pair), now).reason == "UNTRUSTED_CERTIFICATE"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": LIFETIME_SECONDS + 1}, "MALFORMED_CREDENTIAL"),
        ({"exp": 0}, "MALFORMED_CREDENTIAL"),
        ({"iat": -1000, "exp": -1000 + LIFETIME_SECONDS}, "EXPIRED_CREDENTIAL"),
        ({"iat": 1000, "exp": 1000 + LIFETIME_SECONDS}, "EXPIRED_CREDENTIAL"),
    ],
)
def test_a_lifetime_that_is_too_long_or_over_or_to_come_proves_nothing(claims: dict[str, int], reason: str) -> None:
    now = clock()
    moved: dict[str, Any] = {name: int(now()) + value for name, value in claims.items()}
    assert refused(forged(now, **moved), now).reason == reason


def test_clocks_may_differ_a_little() -> None:
    for skew in (-CLOCK_SKEW_SECONDS, CLOCK_SKEW_SECONDS):
        node, server = clock(), clock()
        node._now += skew
        assertion = Signer([NODE.certificate], NODE.key, HOST, node).assertion(SERVICE)
        assert verifier(server).identity(assertion, SERVICE).name == "node-1"


def test_a_remembered_assertion_ends_when_it_expires() -> None:
    now = clock()
    check = verifier(now)
    assertion = forged(now)
    now.advance(LIFETIME_SECONDS + CLOCK_SKEW_SECONDS)
    check.identity(assertion, SERVICE)
    now.advance(1)
    for _ in range(2):
        with pytest.raises(Unauthenticated) as error:
            check.identity(assertion, SERVICE)
        assert error.value.reason == "EXPIRED_CREDENTIAL"


def test_verifying_again_needs_no_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock()
    check = verifier(now)
    assertion = forged(now)
    check.identity(assertion, SERVICE)
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("verified twice"))
    assert check.identity(assertion, SERVICE).name == "node-1"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlmesh.security.signed_assertions._MOST_REMEMBERED", 2)
    now = clock()
    check = verifier(now)
    for number in range(5):
        check.identity(forged(now, jti=str(number)), SERVICE)
    assert len(check._remembered) == 2


def without_signature(now: HandClock) -> str:
    claims = {"aud": audience(HOST, SERVICE), "iat": int(now()), "exp": int(now()) + 60}
    return jwt.encode(claims, "", algorithm="none", headers={"typ": TYPE, "x5c": x5c(NODE.certificate)})


def symmetric(now: HandClock) -> str:
    claims = {"aud": audience(HOST, SERVICE), "iat": int(now()), "exp": int(now()) + 60}
    secret = NODE.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return jwt.encode(claims, secret, algorithm="HS256", headers={"typ": TYPE, "x5c": x5c(NODE.certificate)})


def test_weak_algorithms_prove_nothing() -> None:
    now = clock()
    for assertion in (without_signature(now), symmetric(now)):
        assert refused(assertion, now).reason == "MALFORMED_CREDENTIAL"


@pytest.mark.parametrize(
    "headers",
    [
        {"typ": "JWT"},
        {"x5c": []},
        {"x5c": "MII"},
        {"x5c": [1]},
        {"x5c": ["????"]},
        {"x5c": ["AAAA"]},
        {"x5c": x5c(NODE.certificate) * 5},
    ],
)
def test_an_unusable_header_is_malformed(headers: dict[str, Any]) -> None:
    now = clock()
    assert refused(forged(now, headers=headers), now).reason == "MALFORMED_CREDENTIAL"


@pytest.mark.parametrize("claims", [{"aud": ["a"]}, {"aud": None}, {"iat": "now"}, {"exp": 1.5}, {"exp": None}])
def test_claims_of_the_wrong_type_are_malformed(claims: dict[str, Any]) -> None:
    now = clock()
    assert refused(forged(now, **claims), now).reason == "MALFORMED_CREDENTIAL"


@settings(max_examples=200)
@given(st.one_of(st.text(max_size=80), st.from_regex(r"[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")))
def test_any_text_is_at_worst_refused(text: str) -> None:
    assert refused(text, clock()).reason == "MALFORMED_CREDENTIAL"


@settings(max_examples=100)
@given(position=st.integers(0, 10_000), character=st.sampled_from("ABCDEFGHabcdefgh0123-_.="))
def test_no_assertion_with_a_changed_character_names_someone_else(position: int, character: str) -> None:
    now = clock()
    assertion = forged(now)
    position %= len(assertion)
    changed = assertion[:position] + character + assertion[position + 1 :]
    try:
        identity = verifier(now).identity(changed, SERVICE)
    except Unauthenticated:
        return
    # base64 ignores the last bits of a part: the changed text can mean the same bytes.
    assert identity == Identity("node-1", Role.ACTOR)


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_a_certificate_with_a_changed_byte_is_at_worst_refused() -> None:
    now = clock()
    check = verifier(now)
    original = NODE.certificate.public_bytes(Encoding.DER)
    # The encoding of the signature may differ in a bit and mean the same.
    signed = original.index(NODE.certificate.tbs_certificate_bytes) + len(NODE.certificate.tbs_certificate_bytes)
    reasons = set()
    for position in range(len(original)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(original)
            changed[position] ^= flip
            assertion = forged(now, headers={"x5c": [base64.b64encode(bytes(changed)).decode()]})
            try:
                identity = check.identity(assertion, SERVICE)
            except Unauthenticated as error:
                reasons.add(error.reason)
            else:
                assert position >= signed
                assert identity == Identity("node-1", Role.ACTOR)
    assert reasons == {"MALFORMED_CREDENTIAL", "UNTRUSTED_CERTIFICATE"}


def test_a_huge_assertion_is_not_parsed() -> None:
    now = clock()
    assert refused(forged(now, padding="x" * 20_000), now).reason == "MALFORMED_CREDENTIAL"

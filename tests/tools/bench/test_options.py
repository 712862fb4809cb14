import pytest

from tools.bench.ground.options import chosen_peers, parse_options

KNOWN = ("ray", "dask")


def test_peers_come_in_the_order_in_which_they_are_known() -> None:
    assert chosen_peers("dask, ray", KNOWN) == KNOWN
    assert chosen_peers("all", KNOWN) == KNOWN
    assert chosen_peers("none", KNOWN) == ()
    assert chosen_peers("dask", KNOWN) == ("dask",)


def test_an_unknown_peer_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"none, all, or some of ray, dask; got 'celery'"):
        chosen_peers("ray,celery", KNOWN)


def test_by_default_the_usual_peers_are_measured_and_the_command_can_be_repeated() -> None:
    options = parse_options("", known=KNOWN, usual=("ray",), argv=["--quick"])
    assert options.peers == ("ray",)
    assert options.command.endswith(" --quick")

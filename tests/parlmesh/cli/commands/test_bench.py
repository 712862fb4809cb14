from parlmesh.cli.commands.bench import profile_rows


def spent(thread, phase, seconds, cpu=0.0):
    return {"thread": thread, "phase": phase, "seconds": seconds, "cpu_seconds": cpu}


def test_phases_are_grouped_by_thread_with_their_shares_busiest_thread_first():
    rows = profile_rows(
        "learner",
        [
            spent("event loop", "decode", 1.0, 0.5),
            spent("training", "update", 7.5, 7.0),
            spent("training", "wait", 2.5),
        ],
    )
    assert rows == [
        ["learner", "training", "update", "75.0%", "7.50", "7.00"],
        ["", "", "wait", "25.0%", "2.50", "0.00"],
        ["learner", "event loop", "decode", "100.0%", "1.00", "0.50"],
    ]


def test_a_phase_too_short_to_matter_is_left_out():
    rows = profile_rows("actor", [spent("slots", "act", 99.9), spent("slots", "task", 0.1)])
    assert [row[2] for row in rows] == ["act"]

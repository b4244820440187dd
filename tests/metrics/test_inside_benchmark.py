from benchmarks import inside


def test_the_contestants_do_their_work(monkeypatch):
    monkeypatch.setattr(inside, "ROWS", 8)
    monkeypatch.setattr(inside, "LENGTH", 10)
    monkeypatch.setattr(inside, "DIM", 8)
    for setup in inside.CONTESTANTS.values():
        assert setup()() == 8


def test_the_floor_is_a_thousand_sequences_in_ten_seconds_on_two_cores():
    (race,) = inside.RACES
    assert (race.floor, race.threads) == (100, 2)

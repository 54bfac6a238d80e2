"""When checks are due: all the checks of whole fits, counted by hand."""

import pytest

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.techniques.cadence import Cadence


def checks(settings, epochs, seconds_per_update=1.0):
    """Fit with so many updates in each epoch, as the engine does; (step, epoch) of each check, and none twice."""
    cadence = Cadence(settings, epochs[0])
    step, found = 0, []
    for epoch, updates in enumerate(epochs):
        cadence.updates_per_epoch = updates
        for in_epoch in range(1, updates + 1):
            step += 1
            seconds = step * seconds_per_update
            if in_epoch < updates:
                due = cadence.due(step, epoch, in_epoch, seconds)
            else:
                due = cadence.due_at_end(step, epoch + 1, epoch + 1 == len(epochs), seconds)
            if due:
                cadence.checked(step, seconds)
                found.append(step)
    return found


@pytest.mark.parametrize(
    ("interval", "every", "epochs", "expected"),
    [
        (1.0, 1, [4, 4, 4], [4, 8, 12]),
        (1.0, 2, [4, 4, 4], [8, 12]),  # the end of the fit is always checked
        (0.5, 1, [4, 4], [2, 4, 6, 8]),
        (0.5, 2, [4, 4, 4], [6, 8, 12]),
        (0.3, 1, [10, 10], [3, 6, 9, 13, 16, 19, 20]),  # anew in each epoch
        (0.29, 1, [100], [29, 58, 87, 100]),
        (0.1, 1, [3, 3], [1, 2, 3, 4, 5, 6]),  # less than an update: every one
        (0.5, 1, [8, 4, 2], [4, 8, 10, 12, 13, 14]),  # accumulation that changes
        (3, 1, [4, 4], [3, 6, 8]),  # an int runs on across epochs …
        (3, 5, [4, 4], [3, 6, 8]),  # … whichever they are
        (4, 1, [4, 4], [4, 8]),  # and holds at their ends too
        (100, 1, [4, 4], [8]),
        (1, 1, [2, 1], [1, 2, 3]),
        ("00:00:00:03", 1, [4, 4], [3, 6, 8]),
        ("00:00:00:03.5", 1, [4, 4], [4, 8]),
        ("00:01:00:00", 1, [4, 4], [8]),
    ],
)
def test_the_checks_of_a_fit(interval, every, epochs, expected):
    settings = Settings.make(val_check_interval=interval, check_val_every_n_epoch=every)
    assert checks(settings, epochs) == expected


def test_a_time_counts_from_the_check_before():
    cadence = Cadence(Settings.make(val_check_interval="00:00:00:10"), None)
    assert not cadence.due(1, 0, 1, 9.9)
    assert cadence.due(2, 0, 2, 12.0)
    cadence.checked(2, 15.0)  # the check itself took 3 seconds
    assert not cadence.due(3, 0, 3, 24.9)
    assert cadence.due_at_end(4, 1, False, 25.0)


@pytest.mark.parametrize("interval", [1.0, 3, "00:00:00:10"])
def test_it_goes_on_from_its_state(interval):
    settings = Settings.make(val_check_interval=interval)
    whole = Cadence(settings, 4)
    whole.checked(6, 33.0)
    rest = Cadence(settings, 4)
    rest.load_state_dict(whole.state_dict())
    for step, seconds in [(6, 33.5), (7, 42.5), (8, 43.5), (9, 50.0)]:
        assert rest.due(step, 1, step % 4, seconds) == whole.due(step, 1, step % 4, seconds)
        assert (
            rest.due_at_end(step, 2, True, seconds)
            == whole.due_at_end(step, 2, True, seconds)
            == (step != 6)
        )


def test_the_last_step_is_checked_once_wherever_the_fit_ends():
    cadence = Cadence(Settings.make(val_check_interval=2), 10)
    assert cadence.due(4, 0, 4, 0.0)
    cadence.checked(4, 0.0)
    assert not cadence.due_at_end(4, 0, True, 0.0)
    assert cadence.due_at_end(5, 0, True, 0.0)


def test_an_epoch_without_a_length_takes_whole_epochs_numbers_and_times():
    whole = Cadence(Settings.make(check_val_every_n_epoch=2), None)
    assert not whole.due(5, 1, 5, 0.0)
    assert [whole.due_at_end(5 * n, n, False, 0.0) for n in (1, 2, 3, 4)] == [
        False,
        True,
        False,
        True,
    ]
    number = Cadence(Settings.make(val_check_interval=2), None)
    assert [number.due(n, 0, n, 0.0) for n in (1, 2, 3, 4)] == [False, True, False, True]
    with pytest.raises(
        TaskError, match=r"^val_check_interval=0.25 is a fraction .* no length: .*500.*00:00:10:00"
    ):
        Cadence(Settings.make(val_check_interval=0.25), None)
    later = Cadence(Settings.make(val_check_interval=0.25), 8)
    with pytest.raises(TaskError, match="val_check_interval"):
        later.updates_per_epoch = None

"""Files of output: they rotate, and a full disk ends nothing."""

import errno

from keras_largeout.distribute.processes.supervise import Log


def test_a_log_is_rotated_and_keeps_what_came_last(tmp_path):
    log = Log(tmp_path / "ps_0.log", 10)
    for line in (b"first\n", b"second\n", b"third\n"):
        assert log.write(line) is None
    log.close()
    assert (tmp_path / "ps_0.log").read_bytes() == b"third\n"
    assert (tmp_path / "ps_0.log.1").read_bytes() == b"second\n"


def test_a_full_disk_is_spoken_of_once():
    log = Log("/dev/full", 0)
    assert log.write(b"lost").errno == errno.ENOSPC
    assert log.write(b"lost as well") is None
    log.close()

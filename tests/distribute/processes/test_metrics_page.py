"""The page of metrics: what it answers, and when."""

import argparse
import urllib.error
import urllib.request

import pytest

pytest.importorskip("prometheus_client")

from keras_largeout.distribute.processes import exit_codes
from keras_largeout.distribute.processes.metrics_page import MetricsPage, add_metrics_options


def test_health_is_a_question_of_age():
    ages = [None, 4.9, 5.1]
    page = MetricsPage("port", 0, "127.0.0.1", lambda: ages.pop(0), 5.0)
    url = f"http://127.0.0.1:{page.port}/healthz"
    for text in (b"nothing is under way\n", b"the last sign of progress is 4.9 s old\n"):
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert (answer.status, answer.read()) == (200, text)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(url, timeout=60)
    assert error.value.code == 503
    page.close()


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_misconfigured(port, capsys):
    parser = argparse.ArgumentParser()
    add_metrics_options(parser)
    with pytest.raises(SystemExit) as error:
        parser.parse_args([f"--metrics-port={port}"])
    assert error.value.code == exit_codes.MISCONFIGURED
    assert f"must be an integer from 0 to 65535. Received: {port}" in capsys.readouterr().err


def test_an_address_that_the_machine_does_not_have_is_refused():
    with pytest.raises(OSError, match="`--metrics-port` cannot listen on port 0 of 192"):
        MetricsPage("--metrics-port", 0, "192.0.2.1", lambda: None, 5.0)

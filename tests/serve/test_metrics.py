"""Counters as Prometheus reads them."""

from nearlm.serve.metrics import Metrics


def test_counts_of_two_servers_are_apart():
    one, other = Metrics(), Metrics()
    one.request("/v1/models", 200)
    one.new_tokens(7)
    one.count("m", waiting=2, running=3)
    with one.step():
        pass
    text = one.text().decode()
    assert 'nearlm_requests_total{path="/v1/models",status="200"} 1.0' in text
    assert 'nearlm_tokens_total{kind="completion"} 7.0' in text
    assert 'nearlm_waiting{model="m"} 2.0' in text
    assert "nearlm_step_seconds_count 1.0" in text
    assert 'nearlm_tokens_total{kind="completion"}' not in other.text().decode()

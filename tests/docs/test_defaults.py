"""docs/reference/defaults.md and deploy/config/compatible.yaml agree with the tables of settings."""

import re

from headrace.config.keys.node import find_config
from headrace.config.loader import load_settings
from tests.docs.test_examples import ROOT

FILE = ROOT / "deploy" / "config" / "compatible.yaml"
PAGE = (ROOT / "docs" / "reference" / "defaults.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
# 7 days are the default in hours, and the file has them in milliseconds; Kafka lets the finest unit that is set count.
SAME_IN_OTHER_UNITS = {"log.retention.ms"}


def test_the_compatible_file_is_accepted_without_remarks():
    assert load_settings(str(FILE), {}).remarks() == []


def test_the_page_lists_what_the_file_changes():
    changed = {
        key: heard.text
        for key, heard in load_settings(str(FILE), {}).heard.items()
        if heard.text != find_config(key)[0].default_text and key not in SAME_IN_OTHER_UNITS
    }
    listed = {find_config(name)[0].name: other for name, _, other in ROW.findall(PAGE)}
    assert listed == changed


def test_the_page_has_the_defaults_that_are_in_force():
    for name, default, _ in ROW.findall(PAGE):
        assert find_config(name)[0].default_text == default, name


def test_the_file_has_the_values_of_a_config_in_other_words():
    settings = load_settings(str(FILE), {}).settings
    gateway = settings.gateway
    assert (gateway.host, gateway.port, gateway.acks, gateway.retries) == ("0.0.0.0", 8080, "leader", 3)
    assert (gateway.retry_backoff_ms, gateway.max_poll_records, gateway.session_timeout_ms) == (100, 500, 30_000)
    assert settings.integer("log.retention.ms") == 604_800_000
    assert settings.integer("log.retention.bytes") == 1_073_741_824
    assert (settings.integer("num.partitions"), settings.integer("default.replication.factor")) == (4, 1)
    assert settings.integer("request.timeout.ms") == 30_000
    assert (settings.cluster.heartbeat_interval_ms, settings.cluster.election_timeout_min_ms) == (1000, 3000)

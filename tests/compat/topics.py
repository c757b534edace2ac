"""What each broker of a cluster knows of a topic: the broker that has created it may know it a moment earlier."""

from tests.compat.client_driver import SECONDS_MAX
from tests.integration.told import told_by
from tests.patience import until


def until_all_brokers_know(bootstrap: str, topic: str, partitions: int) -> None:
    """So that any broker may be asked for its partitions, with 0 for none of them: after its deletion.

    Clients ask one broker after the other. One that does not know the topic yet makes a group leader rejoin, and an
    administrator's next call fail.
    """
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    brokers = told_by(host, int(port), topic).brokers.values()

    def all_know() -> bool:
        return all(len(told_by(*broker, topic).partitions) == partitions for broker in brokers)

    until(all_know, f"all brokers know {partitions} partitions of {topic}", SECONDS_MAX)

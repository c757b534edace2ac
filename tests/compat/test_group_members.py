"""Members of the compat tests, against a client that is no client: what they do when a rebalance refuses a commit."""

from types import SimpleNamespace

from tests.compat.group_members import Rebalancing, ThreadedMember, until


class Scripted(ThreadedMember):
    """Its group rebalances at the first commit, and for two polls from then on."""

    async def join(self) -> None:
        self.polls = [[b"1"], [], [b"2"]]
        self.committed: list[bytes] = []
        self.consumer = SimpleNamespace(assignment=list)

    async def poll(self) -> list[bytes]:
        return self.polls.pop(0) if self.polls else []

    async def commit(self) -> None:
        if self.polls:
            raise Rebalancing
        self.committed = list(self.values)

    async def leave(self) -> None:
        return


def test_member_polls_and_commits_again_while_its_group_rebalances() -> None:
    member = Scripted("", "", "")
    until(lambda: len(member.values) == 2, "everything is read", member)
    member.close()
    assert member.committed == [b"1", b"2"]

"""What every ACL request is told by a broker that keeps no ACLs: that there is nothing to keep them in."""

from headrace.broker.call import Call
from headrace.broker.handlers.shared import allows
from headrace.broker.handlers.topic_rows import CLUSTER_DENIED, Outcome
from headrace.model.errors import ErrorCode
from headrace.security.access import Access

DISABLED = Outcome(ErrorCode.SECURITY_DISABLED, "this broker has no access control")


def acl_outcome(call: Call, access: Access) -> Outcome:
    return DISABLED if allows(call, access) else CLUSTER_DENIED

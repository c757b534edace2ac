"""Writes the golden files anew: `python -m tests.golden.record [API...]`, by Kafka's names (ListOffsets).

Look at the difference before you commit it: each line of it is something that clients will see.
"""

import sys

from tests.golden.golden_file import FOLDER, lines_of, path_of, write
from tests.golden.messages import label
from tests.golden.run import conversations
from tests.golden.served import served


def main(names: list[str]) -> None:
    unknown = set(names) - {label(api) for api in served()}
    if unknown:
        sys.exit(f"not served: {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    for api in served():
        if not names or label(api) in names:
            write(api, [(said.heading, lines_of(said.steps)) for said in conversations(api)])
            print(path_of(api))


if __name__ == "__main__":
    main(sys.argv[1:])

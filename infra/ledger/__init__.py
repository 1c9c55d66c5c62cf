"""A key of the ledger is executed by one flow run at a time, and never again once it has a report, whoever asks and how often.

All of it rests on the store's conditional create. Below `ledger/CHECKPOINT-ENGINES/SUITE/`, of the n-th try at a key:

* `000n/claim.json` is created by whoever will submit it, so of any number of triggers one has it;
* `000n/queued.json` says which Prefect has taken it, as which flow run;
* `000n/begun.json` is created by the flow run that executes it, or by who takes the claim away before: one of them has it;
* `000n/alive` is written again and again while it runs; who stops doing so for `TTL_S`, by the store's clock, has lost it;
* `000n/taken.json` is written by who takes it over from a dead flow run.

How a try ended is said by the record of its point, which no other try has, and which is created once: who takes a try over
creates a skip there, so a holder that comes back finds that its own report is not the one that counts.

A claim or a record that can't be read makes its try `unreadable`, which is left alone until somebody has it tried again. Names
of any other shape are not the ledger's, and are passed over.
"""

from infra.ledger.claims import QUEUE_S, TTL_S, Claim
from infra.ledger.entries import Entry, Try, all_entries, entries, entry, find_key, live_tries, without_score
from infra.ledger.turns import begin, begun_by, claim, forgive, queued, renew, take_over, was_taken, withdraw

__all__ = [
    "QUEUE_S",
    "TTL_S",
    "Claim",
    "Entry",
    "Try",
    "all_entries",
    "begin",
    "begun_by",
    "claim",
    "entries",
    "entry",
    "find_key",
    "forgive",
    "live_tries",
    "queued",
    "renew",
    "take_over",
    "was_taken",
    "withdraw",
    "without_score",
]

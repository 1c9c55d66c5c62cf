"""Examples of automations for what a team wants to hear of; `pinpoint up --with-automations` registers them, once each.

They are triggered by states and tags of flow runs, so that skips which the trainer recorded itself trigger them too, and by
the event that a flow sends when it tags its own run.
Without a notification block they are shown by the UI when they fire, and do nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect.automations import AutomationCore, DoNothing, EventTrigger, SendNotification
from prefect.client.orchestration import PrefectClient, get_client
from prefect.events.actions import ActionTypes
from prefect.exceptions import ObjectNotFound

from infra.alarms import FINAL, IN_A_ROW, REGRESSION, SKIPS
from infra.errors import ConfigError
from tasks.alarms import EVENT

SKIPPED = "prefect.flow-run.Skipped"
ENDED_BADLY = tuple(f"prefect.flow-run.{state}" for state in ("Failed", "Crashed", "Cancelled", "TimedOut"))
BODY = """{{ automation.description }}
{{ flow_run.name }}: {{ event.payload.message or event.payload.validated_state.message }}
{{ flow_run|ui_url }}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An automation that fires at one of `events` that has `tag`."""

    name: str
    description: str
    events: frozenset[str]
    tag: str

    def automation(self, action: ActionTypes) -> AutomationCore:
        return AutomationCore(
            name=self.name,
            description=self.description,
            trigger=EventTrigger(
                expect=set(self.events),
                match_related={"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{self.tag}"},
                threshold=1,
            ),
            actions=[action],
        )


EXAMPLES = (
    Example(
        name="pinpoint: the final point was skipped",
        description="The last point of a training run has no number.",
        events=frozenset({SKIPPED, *ENDED_BADLY}),
        tag=FINAL,
    ),
    Example(
        name=f"pinpoint: {IN_A_ROW} skips in a row",
        description=f"At least {IN_A_ROW} points of a run, one after the other, have no number.",
        events=frozenset({SKIPPED, EVENT}),
        tag=SKIPS,
    ),
    Example(
        name="pinpoint: a significant regression",
        description="A dataset's score is lower than at the point before; the paired 95% interval excludes zero, p < 0.05.",
        events=frozenset({EVENT}),
        tag=REGRESSION,
    ),
)


async def register(block: str | None) -> list[str]:
    """Creates what is missing; with `block`, TYPE/NAME of a notification block, all of them notify by it. Gives their names.

    One that is there already keeps everything else that people made of it. Raises ConfigError if there is no such block.
    """
    async with get_client() as client:
        action = await _action(client, block)
        for example in EXAMPLES:
            known = await client.read_automations_by_name(example.name)
            if not known:
                await client.create_automation(example.automation(action))
            for automation in known if block else ():
                kept = automation.model_dump(exclude={"id", "owner_resource"})  # Prefect refuses these two in an update
                changed = AutomationCore.model_validate(kept | {"actions": [action.model_dump()]})
                await client.update_automation(automation.id, changed)
    return [example.name for example in EXAMPLES]


async def _action(client: PrefectClient, block: str | None) -> ActionTypes:
    if block is None:
        return DoNothing()
    kind, slash, name = block.partition("/")
    if not slash or not name:
        raise ConfigError(f"--notify {block}: write TYPE/NAME of a notification block, as slack-webhook/ops")
    try:
        found = await client.read_block_document_by_name(name, kind, include_secrets=False)
    except ObjectNotFound:
        raise ConfigError(
            f"there is no block {block} in Prefect: create it in the UI under Blocks, or leave --notify out"
        ) from None
    return SendNotification(block_document_id=found.id, subject="Pinpoint: {{ flow_run.name }}", body=BODY)

"""What leaves the device when a model is evaluated, as Markdown: one row for each place that impostors come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from uvsdk.federation import algorithms
from uvsdk.federation.disclosure import markdown, names


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What one kind of evaluation costs its people.

    Args:
        evaluates: what a device sends whose person only evaluates.
        trains: what a device sends whose person trains.
        receives: what any device is sent for it.
        server_learns: from reports that arrive one by one.
        others_learn: from what is released.
    """

    evaluates: str
    trains: str
    receives: str
    server_learns: str
    others_learn: str


KINDS: Final = {
    "moments": Disclosure(
        evaluates="the mean of the enrolment embeddings and the template, each with its outer product, and the "
        "covariance of the embeddings around their mean",
        trains="the template and its outer product",
        receives="-",
        server_learns="as long as reports are not summed under a mask, a template of every person under a hashed id, "
        "under both models, and of those who only evaluate how their samples spread and score against each other; no "
        "recording, no photo, no single embedding of a person with several samples",
        others_learn="the released calibration: of how many people, mean and spread of strangers' scores; from 50 "
        "people who only evaluate on also the mean of their embeddings and one leading direction for every 50 of them. "
        "Whoever has a recording of somebody guesses from these whether they are among them: of 50 with an area under "
        "the curve of 0.64 (0.5 is a guess), of 100 with 0.61. Where the model ends in a head that is made to be "
        "centred, from 16 people on the mean of everybody's templates, in the parameters of the candidate that "
        "training begins with: by telephone that tells of 16 with 0.72, of 50 with 0.64, of 100 with 0.60, on clean "
        "speech with 0.88, 0.74 and 0.68",
    ),
    "third_moments": Disclosure(
        evaluates="what it sends under `moments`, and a sketch of the third moments of the embeddings",
        trains="the template and its outer product",
        receives="-",
        server_learns="what it learns under `moments`, and as long as reports are not summed under a mask, from mean, "
        "covariance and third moments of somebody's few samples, the embeddings of these; no recording and no photo",
        others_learn="what they learn under `moments`, and how skewed strangers' scores are, of all people and without "
        "one tenth of them each",
    ),
    "cohort": Disclosure(
        evaluates="a histogram of the template's scores against the cohort",
        trains="a histogram of the template's scores against the cohort",
        receives="embeddings of the cohort, whose people have consented to that, under both models",
        server_learns="under a hashed id, how the template scores against people whom the server knows, without saying "
        "against whom, and of those who only evaluate how their samples score against each other; no vector of them, "
        "but a server that makes the cohort up learns more of a template with every evaluation",
        others_learn="the cohort's embeddings, and the released calibration: impostors' scores of all devices together",
    ),
    "off": Disclosure(
        evaluates="-",
        trains="-",
        receives="-",
        server_learns="nothing",
        others_learn="the calibration that the operator measured on other people's recordings",
    ),
}
"""By the name that ``TrainingConfig.evaluation`` has for it."""

CENTRED: Final = Disclosure(
    evaluates="of the released model the same once more, of embeddings without the mean of the people's means",
    trains="of the released model its template and the outer product once more, likewise",
    receives="that mean, which the released calibration tells as well",
    server_learns="as long as reports are not summed under a mask, from both means and covariances of somebody's few "
    "samples, possibly the embeddings of these; a server that chose what is subtracted would learn more, so a device "
    "takes a mean of unit vectors only, and answers only where its owner approved this setting",
    others_learn="with the released calibration the mean of an earlier evaluation, of 50 people or more, beside that "
    "of the newest: what `moments` says of one mean, of two",
)
"""What ``centring = "measured"`` adds to an evaluation by sums."""


def table() -> str:
    """What every report holds in a sentence, two tables of one row for each kind, and which kind is whose.

    >>> [line.split(" | ")[0].strip("| `") for line in table().splitlines() if line.startswith("| `")][:3]
    ['moments', 'third_moments', 'cohort']
    """
    sent = [[f"`{name}`", item.evaluates, item.trains, item.receives] for name, item in KINDS.items()]
    given = [name for name in algorithms.names() if algorithms.server(name).impostors == "cohort"]
    learned = [[f"`{name}`", item.server_learns, item.others_learn] for name, item in KINDS.items()]
    return "\n\n".join(
        [
            "A report is of two models, the candidate and the released one. Of each, a device whose person only "
            "evaluates sends a histogram of genuine scores (every sample against the mean of the others, raised to "
            "what a fresh one would have against the mean of all), the same by condition of the recording or picture, "
            "and the share of them below each score. Every device says how many "
            "samples it has, and whether it would switch to the candidate. Beside that, of each model:",
            markdown(("evaluation", "who only evaluates sends", "who trains sends", "receives"), sent),
            markdown(("evaluation", "the server learns", "others learn"), learned),
            'Under `centring = "measured"`, beside an evaluation by sums of moments:',
            markdown(
                ("who only evaluates sends", "who trains sends", "receives"),
                [[CENTRED.evaluates, CENTRED.trains, CENTRED.receives]],
            ),
            markdown(("the server learns", "others learn"), [[CENTRED.server_learns, CENTRED.others_learn]]),
            f'`evaluation = "auto"` is `cohort` under {names(given)}, and `moments` under every other method.',
        ]
    )

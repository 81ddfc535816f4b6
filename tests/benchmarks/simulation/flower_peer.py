"""The same rounds in Flower's simulation, run by ``run.py`` in an environment that has flwr, ray and torch.

    python flower_peer.py STEPS ROUNDS

Prints a line of JSON for each round: seconds and, of this process and all its descendants, processor seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
HERE = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
sys.path.insert(0, HERE)

import torch  # noqa: E402
from flwr.client import ClientApp, NumPyClient  # noqa: E402
from flwr.common import Context, ndarrays_to_parameters  # noqa: E402
from flwr.server import ServerApp, ServerAppComponents, ServerConfig  # noqa: E402
from flwr.server.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from workload import DEVICES, SAMPLES, local_steps, network, row, samples  # noqa: E402

STEPS, ROUNDS = int(sys.argv[1]), int(sys.argv[2])


class Device(NumPyClient):
    """Trains on the samples of one partition."""

    def __init__(self, partition: int) -> None:
        torch.set_num_threads(1)
        self._partition = partition

    def fit(self, parameters, config):
        module = network()
        for value, found in zip(module.parameters(), parameters, strict=True):
            value.data = torch.tensor(found)
        local_steps(module, samples(self._partition), row(self._partition), STEPS)
        return [value.detach().numpy() for value in module.parameters()], SAMPLES, {}


class Timed(FedAvg):
    """FedAvg that notes when each round is aggregated."""

    def aggregate_fit(self, server_round, results, failures):
        assert len(results) == DEVICES, failures
        found = super().aggregate_fit(server_round, results, failures)
        print(
            json.dumps({"round": server_round, "at": time.perf_counter(), "processor": _processor_seconds()}),
            flush=True,
        )
        return found


def _processor_seconds() -> float:
    """Of this process and all that descend from it, the ended ones that were waited for included."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        stats[int(path.parent.name)] = (int(fields[1]), sum(int(field) for field in fields[11:15]))
    family, grown = {os.getpid()}, True
    while grown:
        children = {process for process, (parent, _) in stats.items() if parent in family}
        grown = not children <= family
        family |= children
    return sum(stats[process][1] for process in family if process in stats) / os.sysconf("SC_CLK_TCK")


def _device(context: Context):
    return Device(int(context.node_config["partition-id"])).to_client()


def _server(context: Context) -> ServerAppComponents:
    start = ndarrays_to_parameters([value.detach().numpy() for value in network().parameters()])
    strategy = Timed(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=DEVICES,
        min_available_clients=DEVICES,
        initial_parameters=start,
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


if __name__ == "__main__":
    one_processor = {
        "init_args": {"num_cpus": 1, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(ServerApp(server_fn=_server), ClientApp(client_fn=_device), DEVICES, backend_config=one_processor)

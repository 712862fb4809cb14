from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from learner.config import TrainingConfig
from learner.files.recorder import Recorder
from parlmesh.config import effective


def test_tensorboard_is_told_the_settings_of_a_run(tmp_path):
    settings = effective(TrainingConfig.model_validate({"seed": 7, "ppo": {"clip": 0.3, "target_kl": None}}))
    Recorder(tmp_path, "run-7", "CartPole-v1", None, settings=settings).close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    values = [value for event in EventFileLoader(str(file)).Load() for value in event.summary.value]
    (content,) = [value.metadata.plugin_data.content for value in values if value.tag == "_hparams_/session_start_info"]
    told = HParamsPluginData.FromString(content).session_start_info.hparams
    assert (told["seed"].number_value, told["ppo.clip"].number_value) == (7.0, 0.3)
    assert told["environment.id"].string_value == "CartPole-v1"
    assert told["ppo.target_kl"].string_value == "null"
    assert not any(name.startswith("dqn.") for name in told)

"""Wrong inputs of every command that a person makes: a table of command lines.

A line is what would be typed in the folder that `wrong_files.make_files` fills. `-> 3` at its end is the exit code that
the command documents for it; without one it is 2. ` | ` stands between
several last words, each of a command line of its own. Lines that begin with # say what the next ones are about.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

TABLE = r"""
# the command itself
trian good.yaml
train good.yaml --itertions 3
--vershion
# which configuration
train
train nowhere.yaml | folder.yaml
train good.yaml --resume runs/done
train sealed.yaml | empty.yaml | text.yaml | list.yaml | latin.yaml | picture.yaml | twice.yaml | tabs.yaml
train unclosed.yaml | schema.json
train good.yaml other.yaml
train ""
check run.iterations=3
# keys and values of a configuration
check misspelt.yaml | none.yaml
check good.yaml model.famly=sd3 | modle.family=sd3 | model.family=sd4 | model.family=null | model.path=null
check good.yaml model.path=""
check good.yaml run.iterations=0 | run.iterations=-3 | run.iterations=many | run.iterations=2.5
check good.yaml run.iterations=.nan | run.iterations= | run.iterations | =3 | .=3 | run=3 | run.seed=-1
check good.yaml run.name=a/b | run.name=..
check good.yaml run.name=""
check good.yaml run.eval_every=0 | train.learning_rate=0 | train.learning_rate=-1e-4 | train.learning_rate=.nan
check good.yaml train.learning_rate=.inf | train.learning_rate=fast | train.learning_rate=1e400
check good.yaml train.optimizer=sgd | train.schedule=steps | train.updates_per_iteration=1000
check good.yaml train.warmup_updates=-1 | train.betas=[0.9] | train.betas=[0.9,1.0] | train.micro_batch=0
check good.yaml train.sharding=zero3 | model.dtype=float16 | model.lora=16 | 'model.lora={rank: 0, alpha: 1}'
check good.yaml 'model.lora={rank: 4, alpha: 4, targets: [to_nothing]}'
check good.yaml 'model.lora={rank: 4, alpha: 4, start: nowhere.safetensors}' | model.frames=5 | model.device=gpu
check good.yaml model.device=mps | model.base_precision=nf4 | model.path=nowhere/at/all | model.path=./nowhere
check good.yaml model.path=images | model.path=model_of_nobody | model.path=unknown_pipeline
check good.yaml model.path=torn_pipeline | rollout.steps=0 | rollout.steps=ten | rollout.steps=[4]
check good.yaml rollout.guidance_scale=0.5 | rollout.guidance_scale=-1 | rollout.dynamics.kind=ddpm
check good.yaml rollout.dynamics.noise_level=-0.1
check good.yaml 'rollout.tree={roots: 1}' rollout.stochastic.kind=splits
check good.yaml rollout.tree.splits=[7] | rollout.tree.splits=[2,0] | rollout.tree.splits=[0,0]
check good.yaml rollout.tree.branches=1 | rollout.tree.roots=0
check good.yaml 'rollout.explore={precision: fp3, candidates: 8, keep: 4}'
check good.yaml 'rollout.explore={precision: fp8, candidates: 8, keep: 16}'
check good.yaml 'rollout.explore={precision: fp8, candidates: 8, keep: 3}' | objective.kind=ppo | objective.kl=-0.1
check good.yaml objective.clip=0.1
check good.yaml objective.kind=grpo objective.clip=-1
check good.yaml objective.kind=mine:Contract | 'objective={kind: "wrong_module:Thing"}'
check good.yaml 'objective={kind: "mine:Contract"}' | 'objective={kind: "mine:Nothing"}' | credit.reward=step
check good.yaml credit.reward=mine:Contract | credit.clamp=0
check chains.yaml credit.reward=fused | objective.kind=tilt
check good.yaml guards.memory=maybe | track.wandb=3 | track.tensorboard=sometimes | eval.samples=0 | eval.rewards=[]
check good.yaml prompts.per_iteration=0
check good.yaml run.dir=file run.name=new
train good.yaml run.dir=file run.name=new
train good.yaml run.dir=sealed run.name=new
# several at once
check good.yaml run.iterations=0 train.learning_rate=-1 model.famly=sd3
check good.yaml model.path=nowhere/at/all prompts.train=nowhere.txt rewards.0.options={no_such:1}
# prompts
check good.yaml prompts.train=nowhere.txt | prompts.train=empty.txt | prompts.train=blank.txt
check good.yaml prompts.train=latin.txt | prompts.train=images/red.png | prompts.train=prompts.csv
check good.yaml prompts.train=nothing | prompts.train=sealed.txt | prompts.train=broken.jsonl
check good.yaml prompts.train=nokey.jsonl | prompts.train=numbers.jsonl | prompts.train=array.jsonl
check good.yaml prompts.train=shapes | prompts.train=shapes:trian | prompts.train=colours:train
check good.yaml prompts.train=prompts.txt@trian | prompts.train=two.txt@tune | prompts.train=shapes:train@tune
check good.yaml prompts.train=hub: | "prompts.train=hub:no name" | prompts.train=3 | prompts.train=[a,b]
check good.yaml prompts.train=null | prompts.eval=nowhere.txt
# rewards
check good.yaml rewards=[] | rewards=shapes | rewards.0.name=shaps | rewards.0.name=picscore
check good.yaml rewards.0.weight=heavy | rewards.0.weight=.nan | rewards.0.scale=0 | rewards.5.name=shapes
check good.yaml rewards.-1.name=shapes | 'rewards=[{name: shapes, weigth: 2}]'
check good.yaml 'rewards=[{name: shapes}, {name: shapes}]' | rewards.0.options={no_such:1}
check good.yaml rewards.0.name=temporal_flicker | 'rewards=[{name: remote}]'
check good.yaml 'rewards=[{name: remote, options: {url: nonsense}}]'
check good.yaml 'rewards=[{name: remote, options: {url: "http://127.0.0.1:9", reward: shapes}}]'
check good.yaml rewards.0.name=wrong_module:Thing | rewards.0.name=mine:Nothing | rewards.0.name=mine:VALUE
check good.yaml rewards.0.name=mine:Contract | rewards.0.name=mine:Raises | rewards.0.name=mine:Text
check good.yaml rewards.0.name=mine:Short | rewards.0.name=mine:Wants | rewards.0.name=torn:Thing
check good.yaml rewards.0.name=raising:Thing | rewards.0.name=my_reward.py | rewards.0.name=mine.Raises
check good.yaml 'rewards=[{name: pickscore, options: {path: nowhere}}]'
# another machine
check good.yaml --gpu h1000
check good.yaml --memory lots | -3GB | 0
check good.yaml --processes 0 | two
plan good.yaml --gpu h1000
plan good.yaml --utilisation 0 | 40 | half
plan good.yaml --processes -1
plan nowhere.yaml
plan good.yaml run.iterations=0
plan runs/done
plan
# going on
train --resume nowhere | file | nothing | images | runs
train --resume runs/done run.iterations=0 | train.learning_rate=1 | run.iteration=9 | run.iterations=many
train --resume runs/done run.iterations=9 run.iterations=
train --resume runs/done --init-from runs/done
train --resume runs/noconfig | runs/tornconfig
train --resume runs/torn run.iterations=4
train good.yaml run.name=done | --from-start
train good.yaml run.name=new --init-from nowhere
train good.yaml run.name=new --init-from runs/done --step 7
train good.yaml run.name=new --init-from runs/done --step 1 --best
train good.yaml run.name=new --init-from runs/lora
train good.yaml run.name=new --step 1
train good.yaml run.name=new --best
train good.yaml run.name=new --newest
train runs/done
train good.yaml --run.iterations=0 --run.name=new
generate --out new --run tiny --prompt "a red circle"
generate --out new --run runs/done --best --newest --prompt "a red circle"
export runs/done --out new --newest --step 1
train chains.yaml run.name=new --init-from runs/noconfig
# generate
generate
generate --out new
generate --out new --prompt "a red circle"
generate --out new --run runs/done
generate --out new --run nowhere --prompt "a red circle"
generate --out new --run file --prompt "a red circle"
generate --out new --run images --prompt "a red circle"
generate --out new --run runs/torn --prompt "a red circle"
generate --out new --run runs/done --model tiny --prompt "a red circle"
generate --out new --run runs/done --step 7 --prompt "a red circle"
generate --out new --run runs/done --step 0 --prompt "a red circle"
generate --out new --run runs/done --step 1 --best --prompt "a red circle"
generate --out new --run runs/done --lora lora.safetensors --prompt "a red circle"
generate --out new --run runs/done --height 64 --prompt "a red circle"
generate --out new --model tiny --best --prompt "a red circle"
generate --out new --model nowhere --prompt "a red circle"
generate --out new --model nobody/nothing --prompt "a red circle"
generate --out new --model images --prompt "a red circle"
generate --out new --model tiny --family sd4 --prompt "a red circle"
generate --out new --model tiny --family flux --prompt "a red circle"
generate --out new --model tiny --lora nowhere --prompt "a red circle"
generate --out new --model tiny --lora lora.safetensors --prompt "a red circle"
generate --out new --model tiny --lora images --prompt "a red circle"
generate --out new --model tiny --dtype float8 --prompt "a red circle"
generate --out new --model tiny --device gpu --prompt "a red circle"
generate --out new --model tiny --device cuda --prompt "a red circle"
generate --out new --model tiny --height 33 --prompt "a red circle"
generate --out new --model tiny --frames 5 --prompt "a red circle"
generate --out new --model tiny --steps 0 --prompt "a red circle"
generate --out new --model tiny --steps many --prompt "a red circle"
generate --out new --model tiny --steps 5000 --prompt "a red circle"
generate --out new --model tiny --guidance-scale 0 --prompt "a red circle"
generate --out new --model tiny --guidance-scale nan --prompt "a red circle"
generate --out new --model tiny --per-prompt 0 --prompt "a red circle"
generate --out new --model tiny --seed -1 --prompt "a red circle"
generate --out new --model tiny --batch 0 --prompt "a red circle"
generate --out new --model tiny --prompt ""
generate --out new --model tiny --prompts nowhere.txt | empty.txt | latin.txt | shapes:trian
generate --out new --model tiny --prompts prompts.txt --limit 0
generate --out images --model tiny --prompt "a red circle"
generate --out file --model tiny --prompt "a red circle"
generate --out file/new --model tiny --prompt "a red circle"
generate --out sealed/new --model tiny --prompt "a red circle"
# evaluate
evaluate
evaluate --run nowhere | runs | runs/torn
evaluate --run runs/done --step 9
evaluate --run runs/done --reward shaps | temporal_flicker
evaluate --run runs/done --option nothing=1
evaluate --run runs/done --reward shapes --option nothing=1
evaluate --run runs/done --prompts nowhere.txt
evaluate --run runs/done --prompts free.txt -> 3
evaluate --run runs/done --samples 0
evaluate --run runs/done --guidance 0.5 | nan
evaluate --run runs/done --steps 0
evaluate --run runs/done --variety 1
evaluate --run runs/done --out images
evaluate --run runs/done --family sd3
evaluate --run runs/done --model tiny
evaluate --model tiny
evaluate --model tiny --base --reward shapes --prompts shapes:tune
evaluate --model tiny --prompts shapes:tune
# score
score
score images
score nowhere --reward shapes
score nothing --reward shapes
score file --reward shapes
score noimages --reward shapes
score "*.gif" --reward shapes
score images --reward shaps | "" | "=shapes" | shapes
score images --reward shapes --prompt "" -> 3
score images --reward shapes --prompt "a red circle" --prompts captions.txt
score images --reward shapes --prompts nowhere.txt | empty.txt | latin.txt | one.txt | other.jsonl | broken.jsonl
score images --reward shapes --prompts nokey.jsonl
score images --reward shapes --prompt "a happy dog" -> 3
score broken --reward sharpness -> 3
score broken images --reward sharpness --strict -> 3
score images --reward temporal_flicker
score images --media video --reward sharpness
score images --media gif --reward sharpness
score images --reward sharpness --stage train
score images --reward sharpness --iteration 3
score runs/done --reward sharpness --stage tune
score runs/done --reward sharpness --iteration 77 | -1
score images --reward sharpness --limit 0 | all
score images --reward sharpness --batch-size 0
score images --reward sharpness --device gpu | cuda:9
score images --reward sharpness --dtype int8
score images --reward sharpness --option nothing=1 | nothing | other.size=1
score images --reward sharpness --config good.yaml
score images --config nowhere.yaml | empty.yaml | norewards.yaml | none.yaml
score images --reward sharpness --out scores.txt | images | file/scores.jsonl
score images --reward sharpness --plot plot.xlsx | file
score images --reward sharpness --reward sharpness
score images --reward mine:Nothing
score images --reward mine:Raises --prompt "a red circle"
score images --reward mine:Text --prompt "a red circle"
score images --reward remote
score --pipeline tiny --reward shapes
score --pipeline tiny --images new --reward shapes
score --pipeline nowhere --images new --prompts prompts.txt --reward shapes
score --pipeline tiny --images images --prompts prompts.txt --reward shapes
score --images new --prompts prompts.txt --reward shapes
score images --pipeline tiny --images new --prompts prompts.txt --reward shapes
rewards
rewards lst | check
rewards check shaps | mine:Contract
rewards check mine:Raises -> 3
rewards check mine:Text -> 3
rewards self-test shaps
rewards self-test
serve
serve --reward shaps
serve --reward shapes --port 99999 | -1
serve --reward shapes --host nowhere.invalid | 0.0.0.0
serve --reward shapes --token a --token-file prompts.txt
serve --reward shapes --token-file nowhere.txt | empty.txt
serve --reward shapes --server-option max_body_mb=many | nothing=1 | max_body_mb
# export
export
export runs/done
export nowhere --out new
export file --out new
export nothing --out new
export images --out new
export runs --out new
export runs/torn --out new
export runs/noconfig --out new
export runs/done --out images | file | sealed/new
export runs/done --out new --step 7 | -1
export runs/done --out new --step 1 --best
export runs/done --out new --format gguf
export runs/done --out new --format modelopt-fp8 --comfyui
export runs/done --out new --comfyui | --peft
export runs/lora --out runs/lora
# gallery
gallery nowhere --no-browser
gallery file --no-browser
gallery noimages --export site
gallery nothing --export site
gallery runs/done --export images | file | sealed/new
gallery runs/done --port 99999 | http
gallery runs/done --no-browser --host nowhere.invalid | 192.0.2.1
gallery images --reward shaps --export site
gallery images --reward temporal_flicker --export site
gallery images --reward shapes --export site
gallery broken --reward sharpness --export site
gallery runs/done --votes nothing --no-browser --port 0
gallery runs/done --votes broken.jsonl --no-browser --port 0
gallery runs/done --votes broken.jsonl --export site
gallery runs/done --votes images/red.png --export site
gallery runs/done --votes sealed.txt --export site
# compare
compare
compare good.yaml
compare good.yaml --out new
compare good.yaml --out new --budget many | evaluations= | evaluations=-5 | evaluations=1 | dollars=5 | seconds=nan
compare good.yaml --out new --budget evaluations=1000 --dry-run
compare good.yaml good.yaml --out new --budget evaluations=1000 --dry-run
compare good.yaml nowhere.yaml --out new --budget evaluations=1000 --dry-run
compare good.yaml chains.yaml --out images --budget evaluations=1000 --dry-run
compare good.yaml chains.yaml --out file --budget evaluations=1000 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --seeds 0 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --seeds 3 --detect 0.1 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --detect -1 --sd 0.1 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --detect 0.1 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --metric pickscore --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --prices free --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --prices equal,nvfp4=-1 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --guidance 0 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --jobs 0 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --evals 0 --dry-run
compare good.yaml chains.yaml --out new --budget evaluations=1000 --target nan --dry-run
compare good.yaml "chains.yaml prompts.train=words:train" --out new --budget evaluations=1000 --dry-run
compare good.yaml "chains.yaml run.iterations=" --out new --budget evaluations=1000 --dry-run
compare good.yaml "a: chains.yaml" "a: chains.yaml run.seed=2" --out new --budget evaluations=1000 --dry-run
compare --report-only --out nowhere | images
compare good.yaml --report-only --out new
# fidelity
fidelity
fidelity good.yaml
fidelity nowhere.yaml --out new
fidelity good.yaml --out images
fidelity good.yaml --out new --run nowhere
fidelity good.yaml --out new --step 1
fidelity good.yaml --out new --precision fp3 | nvfp4:nothing
fidelity good.yaml --out new --steps 0 | 500
fidelity good.yaml --out new --prompts 0
fidelity good.yaml --out new --candidates 1
fidelity good.yaml --out new --candidates 4 --k 5
fidelity good.yaml --out new --seed -1
# beginning
init nothing | sd3
init quickstart.yml --out images
init quickstart --out good.yaml | sealed/mine.yaml
init ../../etc/passwd | ""
init --list extra words
demo run.iterations=0 | runs/first | run.nam=a | --help-me
"""
LAST = re.compile(r"""('[^']*'|"[^"]*"|\S+)$""")
"""The last word of a line, quoted or not."""


@dataclass(frozen=True)
class WrongInput:
    """A command line and the exit code that it must end with."""

    line: str
    code: int
    about: str

    @property
    def words(self) -> list[str]:
        """Its arguments."""
        return shlex.split(self.line)


def wrong_inputs() -> Iterator[WrongInput]:
    """All lines of the table."""
    about = ""
    for line in TABLE.strip().splitlines():
        if line.startswith("# "):
            about = line.removeprefix("# ")
        else:
            command, _, code = line.partition(" -> ")
            first, *others = command.split(" | ")
            before = LAST.sub("", first)
            yield from (WrongInput(one, int(code or 2), about) for one in (first, *(before + last for last in others)))

"""Wrong inputs of every command that a person makes: a table of command lines.

A line is what would be typed in the folder that `wrong_files.make_files` fills. `-> 3` at its end is the exit code that
the command documents for it; without one it is 2. What stands behind ` :: ` are several ends of one beginning, each of
a command line of its own, with ` | ` between them. Lines that begin with # say what the next ones are about.
"""

from __future__ import annotations

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
train :: nowhere.yaml | folder.yaml | good.yaml --resume runs/done | sealed.yaml | empty.yaml | text.yaml
train :: list.yaml | latin.yaml | picture.yaml | twice.yaml | tabs.yaml | unclosed.yaml | schema.json
train :: good.yaml other.yaml | ""
check run.iterations=3
# keys and values of a configuration
check :: misspelt.yaml | none.yaml
check good.yaml :: model.famly=sd3 | modle.family=sd3 | model.family=sd4 | model.family=null | model.path=null
check good.yaml :: model.path="" | run.iterations=0 | run.iterations=-3 | run.iterations=many
check good.yaml :: run.iterations=2.5 | run.iterations=.nan | run.iterations= | run.iterations | =3 | .=3
check good.yaml :: run=3 | run.seed=-1 | run.name=a/b | run.name=.. | run.name="" | run.eval_every=0
check good.yaml :: train.learning_rate=0 | train.learning_rate=-1e-4 | train.learning_rate=.nan
check good.yaml :: train.learning_rate=.inf | train.learning_rate=fast | train.learning_rate=1e400
check good.yaml :: train.optimizer=sgd | train.schedule=steps | train.updates_per_iteration=1000
check good.yaml :: train.warmup_updates=-1 | train.betas=[0.9] | train.betas=[0.9,1.0] | train.micro_batch=0
check good.yaml :: train.sharding=zero3 | model.dtype=float16 | model.lora=16 | 'model.lora={rank: 0, alpha: 1}'
check good.yaml :: 'model.lora={rank: 4, alpha: 4, targets: [to_nothing]}'
check good.yaml :: 'model.lora={rank: 4, alpha: 4, start: nowhere.safetensors}' | model.frames=5
check good.yaml :: model.device=gpu | model.device=mps | model.base_precision=nf4 | model.path=nowhere/at/all
check good.yaml :: model.path=./nowhere | model.path=images | model.path=model_of_nobody
check good.yaml :: model.path=unknown_pipeline | model.path=torn_pipeline | rollout.steps=0 | rollout.steps=ten
check good.yaml :: rollout.steps=[4] | rollout.guidance_scale=0.5 | rollout.guidance_scale=-1
check good.yaml :: rollout.dynamics.kind=ddpm | rollout.dynamics.noise_level=-0.1
check good.yaml :: 'rollout.tree={roots: 1}' rollout.stochastic.kind=splits | rollout.tree.splits=[7]
check good.yaml :: rollout.tree.splits=[2,0] | rollout.tree.splits=[0,0] | rollout.tree.branches=1
check good.yaml :: rollout.tree.roots=0 | 'rollout.explore={precision: fp3, candidates: 8, keep: 4}'
check good.yaml :: 'rollout.explore={precision: fp8, candidates: 8, keep: 16}'
check good.yaml :: 'rollout.explore={precision: fp8, candidates: 8, keep: 3}' | objective.kind=ppo
check good.yaml :: objective.kl=-0.1 | objective.clip=0.1 | objective.kind=grpo objective.clip=-1
check good.yaml :: objective.kind=mine:Contract | 'objective={kind: "wrong_module:Thing"}'
check good.yaml :: 'objective={kind: "mine:Contract"}' | 'objective={kind: "mine:Nothing"}' | credit.reward=step
check good.yaml :: credit.reward=mine:Contract
check good.yaml credit.clamp=0
check chains.yaml :: credit.reward=fused | objective.kind=tilt
check good.yaml :: guards.memory=maybe | track.wandb=3 | track.tensorboard=sometimes | eval.samples=0
check good.yaml :: eval.rewards=[] | prompts.per_iteration=0 | run.dir=file run.name=new
train good.yaml :: run.dir=file run.name=new | run.dir=sealed run.name=new
# several at once
check good.yaml run.iterations=0 train.learning_rate=-1 model.famly=sd3
check good.yaml model.path=nowhere/at/all prompts.train=nowhere.txt rewards.0.options={no_such:1}
# prompts
check good.yaml :: prompts.train=nowhere.txt | prompts.train=empty.txt | prompts.train=blank.txt
check good.yaml :: prompts.train=latin.txt | prompts.train=images/red.png | prompts.train=prompts.csv
check good.yaml :: prompts.train=nothing | prompts.train=sealed.txt | prompts.train=broken.jsonl
check good.yaml :: prompts.train=nokey.jsonl | prompts.train=numbers.jsonl | prompts.train=array.jsonl
check good.yaml :: prompts.train=shapes | prompts.train=shapes:trian | prompts.train=colours:train
check good.yaml :: prompts.train=prompts.txt@trian | prompts.train=two.txt@tune
check good.yaml :: prompts.train=shapes:train@tune | prompts.train=hub: | "prompts.train=hub:no name"
check good.yaml :: prompts.train=3 | prompts.train=[a,b] | prompts.train=null
check good.yaml prompts.eval=nowhere.txt
# rewards
check good.yaml :: rewards=[] | rewards=shapes | rewards.0.name=shaps | rewards.0.name=picscore
check good.yaml :: rewards.0.weight=heavy | rewards.0.weight=.nan | rewards.0.scale=0 | rewards.5.name=shapes
check good.yaml :: rewards.-1.name=shapes | 'rewards=[{name: shapes, weigth: 2}]'
check good.yaml :: 'rewards=[{name: shapes}, {name: shapes}]' | rewards.0.options={no_such:1}
check good.yaml :: rewards.0.name=temporal_flicker | 'rewards=[{name: remote}]'
check good.yaml :: 'rewards=[{name: remote, options: {url: nonsense}}]'
check good.yaml :: 'rewards=[{name: remote, options: {url: "http://127.0.0.1:9", reward: shapes}}]'
check good.yaml :: rewards.0.name=wrong_module:Thing | rewards.0.name=mine:Nothing | rewards.0.name=mine:VALUE
check good.yaml :: rewards.0.name=mine:Contract | rewards.0.name=mine:Raises | rewards.0.name=mine:Text
check good.yaml :: rewards.0.name=mine:Short | rewards.0.name=mine:Wants | rewards.0.name=torn:Thing
check good.yaml :: rewards.0.name=raising:Thing | rewards.0.name=my_reward.py | rewards.0.name=mine.Raises
check good.yaml 'rewards=[{name: pickscore, options: {path: nowhere}}]'
# another machine
check good.yaml :: --gpu h1000 | --memory lots | --memory -3GB | --memory 0 | --processes 0
check good.yaml --processes two
plan good.yaml :: --gpu h1000 | --utilisation 0 | --utilisation 40 | --utilisation half | --processes -1
plan :: nowhere.yaml | good.yaml run.iterations=0 | runs/done
plan
# going on
train --resume :: nowhere | file | nothing | images | runs | runs/done run.iterations=0
train --resume :: runs/done train.learning_rate=1 | runs/done run.iteration=9 | runs/done run.iterations=many
train --resume :: runs/done run.iterations=9 run.iterations= | runs/done --init-from runs/done | runs/noconfig
train --resume :: runs/tornconfig | runs/torn run.iterations=4
train good.yaml :: run.name=done | --from-start | run.name=new --init-from nowhere
train good.yaml :: run.name=new --init-from runs/done --step 7
train good.yaml :: run.name=new --init-from runs/done --step 1 --best | run.name=new --init-from runs/lora
train good.yaml :: run.name=new --step 1 | run.name=new --best | run.name=new --newest
train :: runs/done | good.yaml --run.iterations=0 --run.name=new
generate --out new --prompt "a red circle" --run :: tiny | runs/done --best --newest
export runs/done --out new --newest --step 1
train chains.yaml run.name=new --init-from runs/noconfig
# generate
generate
generate --out new
generate --out new --prompt "a red circle"
generate --out new --run runs/done
generate --out new --prompt "a red circle" --run :: nowhere | file | images | runs/torn
generate --out new --prompt "a red circle" --run runs/done :: --model tiny | --step 7 | --step 0 | --step 1 --best
generate --out new --prompt "a red circle" --run runs/done :: --lora lora.safetensors | --height 64
generate --out new --prompt "a red circle" --model :: nowhere | nobody/nothing | images
generate --out new --prompt "a red circle" --model tiny :: --best | --family sd4 | --family flux | --lora nowhere
generate --out new --prompt "a red circle" --model tiny :: --lora lora.safetensors | --lora images | --dtype float8
generate --out new --prompt "a red circle" --model tiny :: --device gpu | --device cuda | --height 33 | --frames 5
generate --out new --prompt "a red circle" --model tiny :: --steps 0 | --steps many | --steps 5000 | --seed -1
generate --out new --prompt "a red circle" --model tiny :: --guidance-scale 0 | --guidance-scale nan | --batch 0
generate --out new --prompt "a red circle" --model tiny --per-prompt 0
generate --out new --model tiny :: --prompt "" | --prompts nowhere.txt | --prompts empty.txt | --prompts latin.txt
generate --out new --model tiny :: --prompts shapes:trian | --prompts prompts.txt --limit 0
generate --model tiny --prompt "a red circle" --out :: images | file | file/new | sealed/new
# evaluate
evaluate
evaluate --run :: nowhere | runs | runs/torn
evaluate --run runs/done :: --step 9 | --reward shaps | --reward temporal_flicker | --option nothing=1
evaluate --run runs/done :: --reward shapes --option nothing=1 | --prompts nowhere.txt | --samples 0
evaluate --run runs/done :: --guidance 0.5 | --guidance nan | --steps 0 | --variety 1 | --out images
evaluate --run runs/done :: --family sd3 | --model tiny
evaluate --run runs/done --prompts free.txt -> 3
evaluate --model :: tiny | tiny --base --reward shapes --prompts shapes:tune | tiny --prompts shapes:tune
# score
score
score :: images | nowhere --reward shapes | nothing --reward shapes | file --reward shapes
score :: noimages --reward shapes | "*.gif" --reward shapes
score images --reward :: shaps | "" | "=shapes" | shapes
score images --reward shapes --prompt "" -> 3
score images --reward shapes :: --prompt "a red circle" --prompts captions.txt | --prompts nowhere.txt
score images --reward shapes :: --prompts empty.txt | --prompts latin.txt | --prompts one.txt
score images --reward shapes :: --prompts other.jsonl | --prompts broken.jsonl | --prompts nokey.jsonl
score images --reward shapes --prompt "a happy dog" -> 3
score broken :: --reward sharpness | images --reward sharpness --strict -> 3
score images :: --reward temporal_flicker | --media video --reward sharpness | --media gif --reward sharpness
score images :: --reward sharpness --stage train | --reward sharpness --iteration 3
score runs/done --reward sharpness :: --stage tune | --iteration 77 | --iteration -1
score images :: --reward sharpness --limit 0 | --reward sharpness --limit all
score images :: --reward sharpness --batch-size 0 | --reward sharpness --device gpu
score images :: --reward sharpness --device cuda:9 | --reward sharpness --dtype int8
score images :: --reward sharpness --option nothing=1 | --reward sharpness --option nothing
score images :: --reward sharpness --option other.size=1 | --reward sharpness --config good.yaml
score images :: --config nowhere.yaml | --config empty.yaml | --config norewards.yaml | --config none.yaml
score images :: --reward sharpness --out scores.txt | --reward sharpness --out images
score images :: --reward sharpness --out file/scores.jsonl | --reward sharpness --plot plot.xlsx
score images :: --reward sharpness --plot file | --reward sharpness --reward sharpness | --reward mine:Nothing
score images :: --reward mine:Raises --prompt "a red circle" | --reward mine:Text --prompt "a red circle"
score images :: --reward remote
score --pipeline tiny :: --reward shapes | --images new --reward shapes
score --pipeline nowhere --images new --prompts prompts.txt --reward shapes
score --pipeline tiny --images images --prompts prompts.txt --reward shapes
score --images new --prompts prompts.txt --reward shapes
score images --pipeline tiny --images new --prompts prompts.txt --reward shapes
rewards
rewards :: lst | check
rewards check :: shaps | mine:Contract
rewards check :: mine:Raises | mine:Text -> 3
rewards self-test shaps
rewards self-test
serve
serve --reward :: shaps | shapes --port 99999 | shapes --port -1 | shapes --host nowhere.invalid
serve --reward :: shapes --host 0.0.0.0 | shapes --token a --token-file prompts.txt
serve --reward :: shapes --token-file nowhere.txt | shapes --token-file empty.txt
serve --reward :: shapes --server-option max_body_mb=many | shapes --server-option nothing=1
serve --reward :: shapes --server-option max_body_mb
# export
export
export :: runs/done | nowhere --out new | file --out new | nothing --out new | images --out new | runs --out new
export :: runs/torn --out new | runs/noconfig --out new
export runs/done --out :: images | file | sealed/new | new --step 7 | new --step -1 | new --step 1 --best
export runs/done --out :: new --format gguf | new --format modelopt-fp8 --comfyui | new --comfyui
export runs/done --out new --peft
export runs/lora --out runs/lora
# gallery
gallery :: nowhere --no-browser | file --no-browser | noimages --export site | nothing --export site
gallery runs/done :: --export images | --export file | --export sealed/new | --port 99999 | --port http
gallery runs/done :: --no-browser --host nowhere.invalid | --no-browser --host 192.0.2.1
gallery images --reward :: shaps --export site | temporal_flicker --export site | shapes --export site
gallery broken --reward sharpness --export site
gallery runs/done --votes :: nothing --no-browser --port 0 | broken.jsonl --no-browser --port 0
gallery runs/done --votes :: broken.jsonl --export site | images/red.png --export site
gallery runs/done --votes :: sealed.txt --export site
# compare
compare
compare good.yaml
compare good.yaml --out new
compare good.yaml --out new --budget :: many | evaluations= | evaluations=-5 | evaluations=1 | dollars=5 | seconds=nan
compare good.yaml --out new --budget evaluations=1000 --dry-run
compare good.yaml --out new --budget evaluations=1000 --dry-run :: good.yaml | nowhere.yaml
compare good.yaml chains.yaml --dry-run --budget evaluations=1000 --out :: images | file
compare good.yaml chains.yaml --dry-run --budget evaluations=1000 --out new :: --seeds 0 | --seeds 3 --detect 0.1
compare good.yaml chains.yaml --dry-run --budget evaluations=1000 --out new :: --detect -1 --sd 0.1 | --detect 0.1
compare good.yaml chains.yaml --dry-run --budget evaluations=1000 --out new :: --metric pickscore | --prices free
compare good.yaml chains.yaml --dry-run --budget evaluations=1000 --out new :: --prices equal,nvfp4=-1 | --guidance 0
compare good.yaml chains.yaml --dry-run --budget evaluations=1000 --out new :: --jobs 0 | --evals 0 | --target nan
compare good.yaml "chains.yaml prompts.train=words:train" --out new --budget evaluations=1000 --dry-run
compare good.yaml "chains.yaml run.iterations=" --out new --budget evaluations=1000 --dry-run
compare good.yaml "a: chains.yaml" "a: chains.yaml run.seed=2" --out new --budget evaluations=1000 --dry-run
compare --report-only --out :: nowhere | images
compare good.yaml --report-only --out new
# fidelity
fidelity
fidelity :: good.yaml | nowhere.yaml --out new
fidelity good.yaml --out :: images | new --run nowhere | new --step 1 | new --precision fp3
fidelity good.yaml --out :: new --precision nvfp4:nothing | new --steps 0 | new --steps 500 | new --prompts 0
fidelity good.yaml --out :: new --candidates 1 | new --candidates 4 --k 5 | new --seed -1
# beginning
init :: nothing | sd3 | quickstart.yml --out images
init quickstart --out :: good.yaml | sealed/mine.yaml
init :: ../../etc/passwd | "" | --list extra words
demo :: run.iterations=0 | runs/first | run.nam=a | --help-me
"""


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
            before, several, ends = command.partition(" :: ")
            lines = [f"{before} {end}" for end in ends.split(" | ")] if several else [command]
            yield from (WrongInput(one, int(code or 2), about) for one in lines)

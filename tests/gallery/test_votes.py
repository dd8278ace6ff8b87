"""Blind votes: that they are blind, that none is lost, who may give them, and what is made of them."""

from __future__ import annotations

import html
import io
import json
import math
import random
import re
import threading
from urllib.parse import urlsplit

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from diffrl.gallery.columns import named
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.pages import vote as pages
from diffrl.gallery.pages.vote import Ballots
from diffrl.gallery.ranking import tallies
from diffrl.gallery.thumbnails import blind_image, part
from diffrl.gallery.votes import Side, Vote, add_vote, read_votes, void_vote
from diffrl.tracking.store import SampleStore
from reward_models.media import to_pil
from tests.gallery.made import PROMPTS, add_evaluation, eval_sample, flat, make_run

SAME = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def file(tmp_path):
    """Where votes go."""
    return tmp_path / "votes.jsonl"


class Voter:
    """Votes as the page's form does."""

    def __init__(self, client, address="/vote"):
        self.client = client
        answer = client.get(address, headers=SAME)
        assert answer.status_code == 200, answer.text
        self.address, self.headers = str(answer.url), answer.headers
        self.read(answer)

    def read(self, answer):
        """What the page shows: the pair, the images' addresses, how far it is; `results` after the last pair."""
        self.page = page = answer.text
        if 'id="ballot"' not in page:
            self.results = urlsplit(str(answer.url))
            return
        self.hidden = dict(re.findall(r'name="(session|key|pair)" value="([^"]*)"', page))
        self.prompt = html.unescape(re.search(r'id="prompt"[^>]*>(.*?)</p>', page, re.S)[1])
        sides = re.search(r'id="sides">(.*?)id="next"', page, re.S)[1]
        self.left, self.right = re.findall(r' src="(/vote/image/[^"]+)"', sides)
        self.place, self.total = map(int, re.search(r'id="place">(\d+) of (\d+)', page).groups())
        self.animated = "data-animated" in page

    def post(self, choice, **more):
        return self.client.post(
            "/vote", data={**self.hidden, "choice": choice, **more}, headers={**SAME, **more.pop("headers", {})}
        )

    def vote(self, choice, **more):
        answer = self.post(choice, **more)
        assert answer.status_code == 200, answer.text
        self.read(answer)
        return self


def brightness(client, address):
    return sum(Image.open(io.BytesIO(client.get(address).content)).convert("L").tobytes())


def side(state="eval-0", sample=("p", 0, 0, 0, ""), path="/runs/x", **rewards):
    return Side("x", path, state, sample, f"samples/{state}/{sample[2]}.webp", rewards)


def given(choice, group=0, a=None, b=None, voter="", session="s", left="a"):
    key = (f"p{group}", 0, group, 0, "")
    made = side("eval-0", key, **(a or {})), side("eval-9", key, **(b or {}))
    return Vote(f"{random.random()}", "2026-01-01T00:00:00+00:00", voter, session, key[0], *made, left, choice)


# Blindness


def test_the_page_its_headers_and_its_pictures_tell_nothing(tmp_path, client_of):
    run = make_run(tmp_path / "runs" / "verytelling", iterations=46)
    client = client_of(run, random=random.Random(3))
    voter = Voter(client, "/vote?run=verytelling")
    pages, lefts = set(), []
    for _ in range(5):
        answer = client.get(voter.address)
        told = answer.text + repr(sorted(answer.headers.items())) + voter.address
        for word in ("verytelling", "eval-", "iteration 0", "shapes", "0.3", "media/", "samples/", "webp"):
            assert word not in told, word
        sides = [client.get(address) for address in (voter.left, voter.right)]
        shown = [{k: v for k, v in picture.headers.items() if k != "content-length"} for picture in sides]
        assert shown[0] == shown[1] and not {"etag", "last-modified", "content-disposition"} & set(shown[0])
        sizes = {Image.open(io.BytesIO(picture.content)).size for picture in sides}
        assert len(sizes) == 1 and all(picture.status_code == 200 for picture in sides)
        lights = [brightness(client, address) for address in (voter.left, voter.right)]
        lefts.append(lights[0] < lights[1])
        # Without the ballot's names, the prompt and the place, the page is the same whichever image is on the left.
        plain = answer.text.replace(voter.prompt, "PROMPT")
        plain = re.sub(
            r'"next" hidden>.*?</div>|value="[\w-]*"|/vote/image/[\w-]+/\d+|session=[\w-]+', "", plain, flags=re.S
        )
        pages.add(re.sub(r"\s+", " ", re.sub(r">\d+ of|disabled", "", plain)))
        assert answer.headers.keys() == client.get("/votes").headers.keys()
        voter.vote("equal")
    assert set(lefts) == {True, False}, "both ways round were seen"
    assert len(pages) == 1


def test_left_is_a_for_half_of_the_pairs_and_every_session_has_an_order_of_its_own(made):
    prompts = [f"prompt {n}" for n in range(100)]
    for iteration in (10, 20):
        add_evaluation(made, iteration, prompts, roots=1)
    from diffrl.gallery.runs import RunSource

    source = RunSource("made", made)
    states = {state.key: state for state in source.states()}
    columns = named([(source, states["eval-10"]), (source, states["eval-20"])])
    draw = Ballots(random.Random(5))
    first, second = draw.begin(*columns), draw.begin(*columns)
    lefts = [pair.left for ballot in (first, second) for pair in ballot.pairs]
    # A fair coin: of 200, fewer than 70 or more than 130 heads have a probability below 1e-4.
    tail = sum(math.comb(200, k) for k in range(70)) / 2**200
    assert tail < 1e-4 and len(lefts) == 200 and 70 <= lefts.count("a") <= 130
    orders = [[pair.prompt for pair in ballot.pairs] for ballot in (first, second)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == sorted(prompts)
    assert orders[0] != prompts
    sides = [{pair.prompt: pair.left for pair in ballot.pairs} for ballot in (first, second)]
    assert 25 <= sum(sides[0][prompt] == sides[1][prompt] for prompt in prompts) <= 75, "drawn for each session"
    for pair in first.pairs:
        assert pair.samples["a"].key == pair.samples["b"].key and pair.samples["a"].state.iteration == 10
    assert first.name != second.name and min(len(first.name), len(second.name)) >= 12


def test_chance_is_the_systems_own_unless_a_test_says_otherwise():
    assert isinstance(Ballots()._chance, random.SystemRandom)


def test_a_vote_names_the_picture_that_was_on_that_side(made, client_of, file):
    """The brightness of the pictures tells which evaluation they are from: it is the only thing that does."""
    client = client_of(made, random=random.Random(1))
    voter = Voter(client, "/vote?voter=%20Ada%20%20L.%20")
    lefts = []
    for choice in ("left", "right", "left", "right", "equal", "left"):
        lights = [brightness(client, address) for address in (voter.left, voter.right)]
        voter.vote(choice)
        vote = read_votes(file).votes[-1]
        later = "left" if lights[0] > lights[1] else "right"  # evaluation 4 is brighter than evaluation 0
        assert (vote.a.state, vote.b.state) == ("eval-0", "eval-4")
        assert vote.left == ("b" if later == "left" else "a")
        assert vote.choice == ("tie" if choice == "equal" else "b" if choice == later else "a")
        assert vote.a.sample == vote.b.sample and vote.prompt == vote.a.sample[0] in PROMPTS
        assert vote.a.picture.startswith("samples/eval-000000/") and vote.b.rewards["shapes"] is not None
        assert vote.a.path == str(made.resolve()) and vote.voter == "Ada L."
        lefts.append(vote.left)
    assert set(lefts) == {"a", "b"} and voter.results[2:4] == ("/votes", "a=made%40eval-0&b=made%40eval-4")


def test_pictures_lose_what_their_files_say_and_both_get_one_size(tmp_path):
    info = PngInfo()
    info.add_text("parameters", "checkpoint 80")
    small, large = to_pil(flat(0.2)), Image.new("RGB", (96, 48), "red")
    small.save(tmp_path / "a.png", pnginfo=info)
    large.save(tmp_path / "b.jpg", comment=b"base model")
    read = {}
    for here, beside in (("a.png", "b.jpg"), ("b.jpg", "a.png")):
        data, kind = blind_image(tmp_path / here, tmp_path / beside)
        assert kind == "image/png" and b"checkpoint" not in data and b"base model" not in data
        read[here] = Image.open(io.BytesIO(data))
        assert read[here].info == {}
    assert read["a.png"].size == (96, 96) and read["b.jpg"].size == (96, 48)
    same, _ = blind_image(tmp_path / "a.png", tmp_path / "a.png")
    assert Image.open(io.BytesIO(same)).tobytes() == small.tobytes(), "pixels stay as they are"


def test_a_part_of_a_video_is_what_was_asked_for():
    data = bytes(range(10))
    assert part(data, None) == (data, 200, {"Accept-Ranges": "bytes"})
    body, status, headers = part(data, "bytes=2-4")
    assert (body, status, headers["Content-Range"]) == (b"\2\3\4", 206, "bytes 2-4/10")
    assert part(data, "bytes=7-")[0] == b"\7\10\11" and part(data, "bytes=5-99")[0] == data[5:]
    assert part(data, "bytes=10-")[1] == 416 and part(data, "lines=1-2")[1] == 200


# Giving votes


def test_skipping_counts_nothing_and_undo_takes_the_last_vote_back(made, client_of, file):
    voter = Voter(client_of(made))
    seen = [voter.left]
    assert voter.vote("undo").left == seen[0] and not file.exists()
    for choice in ("left", "skip", "right", "skip", "skip"):
        seen.append(voter.vote(choice).left)
    assert (voter.place, voter.total) == (6, 6) and len(read_votes(file).votes) == 2
    assert voter.vote("undo").left == seen[2] and voter.place == 3
    read = read_votes(file)
    assert len(read.votes) == 1 and read.voided == 1 and len(file.read_text().splitlines()) == 3
    again = brightness(voter.client, voter.left)
    voter.vote("equal")
    assert brightness(voter.client, voter.vote("undo").left) == again, "sides stay"
    assert voter.vote("undo").left == seen[0] and read_votes(file).votes == []
    assert voter.vote("undo").place == 1 and read_votes(file).voided == 3


def test_a_double_click_votes_once(made, client_of, file):
    voter = Voter(client_of(made))
    voter.vote("left")
    assert voter.vote("left", pair="0").place == 2 and len(read_votes(file).votes) == 1


ELSEWHERE = [  # headers, fields, status
    ({"sec-fetch-site": "cross-site"}, {}, 403),
    ({"sec-fetch-site": "same-site"}, {}, 403),
    ({"sec-fetch-site": "none"}, {}, 403),
    ({"sec-fetch-site": None, "origin": "http://evil.example"}, {}, 403),
    ({"sec-fetch-site": None, "origin": "null"}, {}, 403),
    ({}, {"key": "guessed"}, 403),
    ({}, {"key": ""}, 403),
    ({}, {"session": "guessed"}, 404),
    ({}, {"choice": "b"}, 400),
    ({}, {"pad": "x" * 30_000}, 413),
    ({}, {f"more{n}": "x" for n in range(11)}, 400),
]


def test_votes_from_elsewhere_and_odd_ones_are_refused(made, client_of, file):
    voter = Voter(client_of(made))
    for headers, fields, status in ELSEWHERE:
        form = {**voter.hidden, "choice": "left", **fields}
        every = {name: value for name, value in {**SAME, **headers}.items() if value is not None}
        answer = voter.client.post("/vote", data=form, headers=every)
        assert answer.status_code == status, (headers, fields)
        assert voter.client.get("/vote", params=form, headers=every).status_code in (200, 404)
    for body in (b"\xff\xfe=&;;&%", b"session[]=1", b""):
        headers = {**SAME, "content-type": "application/x-www-form-urlencoded"}
        answer = voter.client.post("/vote", content=body, headers=headers)
        assert answer.status_code in (400, 404) and 'role="alert"' in answer.text, body
    for name in ("x" * 81, "%00%1b"):
        assert voter.client.get(f"/vote?voter={name}").status_code == 400
    assert not file.exists()


@pytest.mark.parametrize(("place", "status"), [("cross-site", 403), ("same-site", 403), ("none", 200), (None, 200)])
def test_a_page_elsewhere_begins_no_ballot(made, client_of, place, status):
    """It would push the ballots of others out."""
    answer = client_of(made).get("/vote", headers={"sec-fetch-site": place} if place else {})
    assert answer.status_code == status
    assert status == 200 or "A vote begins on the gallery" in answer.text


def test_votes_of_a_browser_without_fetch_metadata_are_known_by_their_origin(made, client_of, file):
    voter = Voter(client_of(made))
    for origin in ("http://127.0.0.1", None):
        form = {**voter.hidden, "choice": "left"}
        answer = voter.client.post("/vote", data=form, headers={"origin": origin} if origin else {})
        voter.read(answer)
    assert len(read_votes(file).votes) == 2


@pytest.mark.long
def test_several_voters_lose_no_votes(tmp_path, client_of, file):
    client = client_of(make_run(tmp_path / "runs" / "made", prompts=[f"p {n}" for n in range(20)], roots=1))
    voters = [Voter(client, f"/vote?voter=v{n}") for n in range(4)]
    problems = []

    def work(voter):
        try:
            for number in range(20):
                voter.vote(("left", "right", "equal")[number % 3])
        except Exception as error:  # told below: a thread's assertion is otherwise silent
            problems.append(error)

    threads = [threading.Thread(target=work, args=(voter,)) for voter in voters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_votes(file)
    assert not problems and found.unreadable == 0 and len(found.votes) == 80
    for n in range(4):
        assert len({vote.a.sample for vote in found.votes if vote.voter == f"v{n}"}) == 20


def test_pairs_without_pictures_are_left_out_and_missing_files_shown_as_missing(tmp_path, client_of, site_of):
    run = tmp_path / "runs" / "made"
    make_run(run, prompts=PROMPTS, roots=1)
    add_evaluation(run, 6, PROMPTS[:2], roots=1)
    add_evaluation(run, 8, PROMPTS, roots=1, pictures=False)
    client = client_of(run)
    refused = client.get("/vote?a=made@eval-0&b=made@eval-8")
    assert refused.status_code == 400 and "Of none of the 3 pairs" in refused.text
    add_evaluation(run, 10, PROMPTS, roots=1)
    (run / "samples" / "eval-000000" / "1-0.webp").unlink()  # kept, and gone since, as after a clean-up
    gone = Voter(client, "/vote?a=made@eval-0&b=made@eval-10")
    assert gone.total == 2 and "1 pair is left out" in gone.page and "2 pairs of images" in gone.page
    assert {gone.prompt, gone.vote("skip").prompt} == {PROMPTS[0], PROMPTS[2]}
    voter = Voter(client, "/vote?a=made@eval-4&b=made@eval-6")
    assert voter.total == 2
    for picture in (run / "samples" / "eval-000006").iterdir():
        picture.write_bytes(b"no image")
    assert sorted(client.get(address).status_code for address in (voter.left, voter.right)) == [200, 404]
    session = voter.hidden["session"]
    for address in (
        "guessed/0/left",
        f"{session}/2/left",
        f"{session}/-1/left",
        f"{session}/0/a",
        f"{session}/0/source",
    ):
        assert client.get(f"/vote/image/{address}").status_code == 404
    assert voter.vote("skip").place == 2


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/vote?a=made@eval-0&b=made@eval-0", "are the same"),
        ("/vote?a=made@eval-0", "Give both"),
        ("/vote?a=made@eval-0&b=made@eval-7", "has no samples"),
        ("/vote?session=old", "restarted"),
        ("/votes?a=nothing@x&b=made@eval-0", "There is no run"),
    ],
)
def test_what_cannot_be_voted_on_is_said(made, client_of, address, words):
    answer = client_of(made).get(address)
    assert answer.status_code in (400, 404) and words in answer.text


def test_pairs_of_all_ballots_are_bounded_and_metadata_is_not_held(made, client_of, monkeypatch):
    monkeypatch.setattr(pages, "HELD", 13)  # of 6 pairs each: two ballots
    client = client_of(made)
    voters = [Voter(client) for _ in range(3)]
    refused = voters[0].post("left")
    assert refused.status_code == 404 and "restarted, or too many others were begun" in refused.text
    assert client.get(voters[0].left).status_code == 404
    assert voters[1].post("left").status_code == voters[2].post("left").status_code == 200


def test_pictures_that_come_while_a_ballot_begins_are_not_taken_for_others(tmp_path):
    """Samples of a folder are numbered by their order: a new first file moves all others."""
    from diffrl.gallery.folders import FolderSource

    class Growing(FolderSource):
        def samples(self, state, ids):
            if self.key == "tuned":
                to_pil(flat(0.9)).save(self.path / "a.png")
                (self.path / "a.txt").write_text("prompt a")
                return FolderSource(self.key, self.path).samples(state, ids)
            return super().samples(state, ids)

    columns = []
    for name in ("base", "tuned"):
        (tmp_path / name).mkdir()
        for letter in "bcd":
            to_pil(flat(0.1)).save(tmp_path / name / f"{letter}.png")
            (tmp_path / name / f"{letter}.txt").write_text(f"prompt {letter}")
        source = Growing(name, tmp_path / name)
        columns += [(source, source.states()[0])]
    try:
        pairs = Ballots(random.Random(1)).begin(*named(columns)).pairs
    except GalleryError:
        pairs = []  # nothing is left
    assert all(pair.samples["a"].key == pair.samples["b"].key for pair in pairs)


def test_large_evaluations_are_drawn_from(made, client_of, monkeypatch):
    monkeypatch.setattr(pages, "PAIRS", 4)
    voter = Voter(client_of(made))
    assert voter.total == 4 and "4 of 6 pairs, chosen at random" in voter.page


def test_two_folders_are_the_two_sides(tmp_path, client_of, file):
    for name, hue in (("base", 0.1), ("tuned", 0.6)):
        (tmp_path / name).mkdir()
        for number in range(3):
            to_pil(flat(hue + number / 20)).save(tmp_path / name / f"{number} é.png")
            (tmp_path / name / f"{number} é.txt").write_text(f"prompt {number}")
    voter = Voter(client_of(tmp_path / "base", tmp_path / "tuned"))
    assert voter.total == 3 and "base" not in voter.page and "tuned" not in voter.page
    voter.vote("left")
    (vote,) = read_votes(file).votes
    assert (vote.a.source, vote.b.source) == ("base", "tuned") and vote.a.sample == vote.b.sample
    assert vote.prompt.startswith("prompt ") and vote.b.picture == f"{vote.prompt[-1]} é.png"


@pytest.mark.parametrize("suffix", [".webp", ".gif", ".png"])
def test_what_moves_is_started_together(tmp_path, client_of, suffix):
    frames = [to_pil(flat(0.1 * n)) for n in range(3)]
    for name, shown in (("base", frames), ("tuned", frames[::-1]), ("still", frames[:1])):
        (tmp_path / name).mkdir()
        shown[0].save(tmp_path / name / f"1{suffix}", save_all=True, append_images=shown[1:], duration=100)
    assert Voter(client_of(tmp_path / "base", tmp_path / "tuned")).animated is True
    if suffix != ".gif":  # no GIF says so in its head
        (tmp_path / "base" / f"1{suffix}").write_bytes((tmp_path / "still" / f"1{suffix}").read_bytes())
        assert Voter(client_of(tmp_path / "base", tmp_path / "still")).animated is False


# The file


def test_a_torn_last_line_is_dropped_and_the_next_vote_keeps_its_own(file):
    first = add_vote(file, "", "s", side(), side("eval-9"), "a", "b")
    with file.open("ab") as stream:
        stream.write(b'{"id": "torn", "time"')
    found = read_votes(file)
    assert [vote.id for vote in found.votes] == [first.id] and found.unreadable == 0
    second = add_vote(file, "", "s", side(), side("eval-9"), "b", "tie")
    found = read_votes(file)
    assert found.votes == [first, second] and found.unreadable == 1
    assert file.read_bytes().count(b"\n") == 3, "nothing was taken away"
    void_vote(file, first.id)
    assert read_votes(file).votes == [second]


def test_a_whole_last_line_without_its_newline_counts(file):
    vote = add_vote(file, "", "s", side(), side("eval-9"), "a", "b")
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert read_votes(file).votes == [vote]


def test_lines_that_are_no_votes_are_counted_and_harmless(file, made, client_of):
    good = add_vote(file, "", "s", side(), side("eval-9"), "a", "b")
    line = json.loads(file.read_text())
    bad = [
        "[1]",
        "null",
        "{}",
        json.dumps({**line, "choice": "c"}),
        json.dumps({**line, "a": {**line["a"], "sample": ["p", True, 0, 0, ""]}}),
        json.dumps({**line, "b": {**line["b"], "rewards": [1]}}),
        json.dumps({**line, "prompt": 3}),
        "[" * 5000,
    ]
    file.write_text("\n".join([*bad, json.dumps(line)]) + "\n")
    assert read_votes(file).unreadable == len(bad) and read_votes(file).votes == [good]
    strange = {**line, "id": "2", "a": {**line["a"], "rewards": {"x": "high", "y": None, "z": True, "w": 2}}}
    file.write_text(json.dumps(strange) + "\n")
    assert read_votes(file).votes[0].a.rewards == {"x": None, "y": None, "z": None, "w": 2.0}
    assert client_of(made).get("/votes").status_code == 200


def test_a_file_that_cannot_be_used_is_told_and_left_as_it_is(made, client_of, file):
    client = client_of(made)
    voter = Voter(client)
    file.write_bytes(b"\xff\xfe broken")
    answer = client.get("/votes")
    assert answer.status_code == 503 and "Nothing was changed" in answer.text
    assert file.read_bytes() == b"\xff\xfe broken"
    file.unlink()
    file.mkdir()
    answer = voter.post("left")
    assert answer.status_code == 503 and "not counted" in answer.text
    file.rmdir()
    assert voter.vote("left").place == 2, "the pair stayed"


# What votes say


def test_a_tally_counts_wins_ties_and_what_rewards_think():
    scores = [  # choice, reward of A, reward of B
        ("b", 0.1, 0.9),  # agrees
        ("b", 0.9, 0.1),  # does not
        ("b", 0.5, 0.5),  # the reward is undecided
        ("a", 0.9, 0.1),  # agrees
        ("tie", 0.1, 0.9),  # the voter is undecided
        ("b", None, 0.9),  # not scored
    ]
    votes = [given(choice, n, {"r": a, "only_a": 1.0}, {"r": b}) for n, (choice, a, b) in enumerate(scores)]
    votes.append(given("b", 0, {"r": 0.1}, {"r": 0.9}, session="other"))  # the first pair once more: agrees
    (tally,) = tallies(votes)
    assert (tally.ties, len(tally.pairs), tally.voters) == (1, 6, 2)
    assert (tally.rate.wins, tally.rate.trials) == (5, 6) and tally.with_ties == pytest.approx(5.5 / 7)
    (opinion,) = tally.opinions
    assert opinion.reward == "r" and (opinion.agrees.wins, opinion.agrees.trials, opinion.left_out) == (3, 4, 3)
    assert (opinion.prefers_b.wins, opinion.prefers_b.trials) == (2, 4), "of distinct pairs"
    assert (opinion.undecided, opinion.unknown) == (1, 1)
    assert "cannot tell" in tally.verdict


def test_votes_count_whichever_was_called_a():
    votes = [given("b", n) for n in range(6)] + [given("a", n).flipped() for n in range(6, 8)]
    assert votes[-1].choice == "b" and votes[-1].a.state == "eval-9"
    (tally,) = tallies(votes)
    assert (tally.rate.wins, tally.rate.trials) == (6, 8) and tally.a.state == "eval-0"


def test_results_page_shows_figures_thumbnails_and_only_what_was_asked_for(made, client_of, file):
    client = client_of(made)
    assert "No votes" in client.get("/votes").text
    voter = Voter(client)
    for choice in ("left", "left", "right", "equal"):
        voter.vote(choice)
    page = client.get("/votes").text
    assert (
        "4 votes cannot tell" in page and "Wilson" in page and "shapes_strict" in page and "1 tie is not in it" in page
    )
    sources = re.findall(r'<img class="media[^"]*" src="([^"]+)"', page)
    assert len(sources) == 8 and all(
        client.get(address.replace("&amp;", "&")).status_code == 200 for address in sources
    )
    other = client.get("/votes?a=made@eval-0&b=made@eval-2").text
    assert "No votes on this" in other and "4 more" in other
    assert "4 votes" in client.get("/votes?a=made@eval-4&b=made@eval-0").text
    assert "4 votes" in client.get("/votes?run=made").text


def test_of_many_evaluations_a_list_offers_some(tmp_path, client_of):
    run = tmp_path / "long"
    run.mkdir()
    (run / "config.yaml").write_text("run: {iterations: 300}\n")
    with SampleStore(run) as store:
        store.write([eval_sample(n, 0, 0, "a circle", 0.5) for n in range(250)])
    page = client_of(run).get("/votes?a=long@eval-7&b=long@eval-249").text
    offered = re.findall(r'<option value="long@eval-(\d+)" (selected)?', page)
    assert len(offered) < 2 * 60 and offered[0] == ("0", "") and ("249", "") in offered
    assert [number for number, chosen in offered if chosen] == ["7", "249"]


def test_votes_on_runs_that_are_not_shown_are_counted_without_pictures(made, client_of, file):
    add_vote(file, "", "s", side(), side("eval-9"), "a", "b")
    answer = client_of(made).get("/votes")
    assert answer.status_code == 200 and answer.text.count("not in this gallery") == 2

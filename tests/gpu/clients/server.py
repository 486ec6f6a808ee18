"""A server of a language model: a decoder of a billion parameters, batch 1, one launch of a CUDA graph for each token. The
weights are random and the same in every such program, so the same prompt has the same answer everywhere.

    requests COUNT SECONDS       so many requests, each so long after the last one was answered
    serve SECONDS SEED RATE      requests that arrive for so long, RATE a second on average (a Poisson process). One that arrives
                                 while another is answered waits

An answer is 64 tokens, each the most likely one. The host reads a token before it asks for the next one. Prints {"ready": true}
first. What an order answers:

    seconds         of each request, from the begin of its service to its last token
    from_arrival    seconds of each first token since the request arrived
    from_service    seconds of each first token since the begin of its service
    later           seconds of each other token, from the one before
    checksums       by prompt, those of all answers: one for each prompt if all is right
"""

import os
import random
import time
import zlib

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from obey import orders, say

LAYERS, WIDTH, HEADS, VOCABULARY = 18, 2048, 16, 32000
# Positions of the cache, of which an answer takes the first ones.
POSITIONS = 512
TOKENS = 64
# Requests ask with so many different prompts of one token, in turn.
PROMPTS = 4
SEED, SPREAD = 7, 0.02
WARMUP_STEPS = 3
# One kernel where there is one for such a mask, else plain products.
ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
DIGITS = 6


class Decoder:
    """The weights, the cache, and where the last token is and its position. All stays at its place, as a graph needs it."""

    def __init__(self, device):
        self.generator = torch.Generator(device).manual_seed(SEED)
        self.tokens, self.places, self.head = (self.weights(rows, WIDTH) for rows in (VOCABULARY, POSITIONS, VOCABULARY))
        shapes = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
        self.layers = [[self.weights(*shape) for shape in shapes] for _ in range(LAYERS)]
        self.caches = torch.zeros(LAYERS, 2, 1, HEADS, POSITIONS, WIDTH // HEADS, device=device, dtype=torch.bfloat16)
        self.token, self.position = (torch.zeros(1, device=device, dtype=torch.int64) for _ in range(2))
        self.all_positions = torch.arange(POSITIONS, device=device)
        self.no_mask = torch.zeros(POSITIONS, device=device, dtype=torch.bfloat16)

    def weights(self, rows, columns):
        empty = torch.empty(rows, columns, device=self.generator.device, dtype=torch.bfloat16)
        return empty.normal_(0.0, SPREAD, generator=self.generator)

    def parameters(self):
        return sum(one.numel() for one in [self.tokens, self.places, self.head, *(one for layer in self.layers for one in layer)])

    def begin(self, prompt):
        """The next step is the first one of an answer. What the cache has of others is masked until it is written anew."""
        self.token.fill_(prompt)
        self.position.zero_()

    def step(self):
        """Puts the next token in the place of the last one. The host is not asked for anything, so a graph can do it."""
        later = self.all_positions > self.position
        mask = self.no_mask.masked_fill(later, float("-inf")).view(1, 1, 1, POSITIONS)
        hidden = functional.embedding(self.token, self.tokens) + functional.embedding(self.position, self.places)
        for (into, out, up, down), (keys, values) in zip(self.layers, self.caches):
            query, key, value = functional.linear(normal(hidden), into).view(3, 1, HEADS, 1, WIDTH // HEADS)
            keys.index_copy_(2, self.position, key)
            values.index_copy_(2, self.position, value)
            found = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            hidden = hidden + functional.linear(found.reshape(1, WIDTH), out)
            hidden = hidden + functional.linear(functional.gelu(functional.linear(normal(hidden), up)), down)
        logits = functional.linear(normal(hidden), self.head)
        self.token.copy_(logits.argmax(-1))
        self.position.add_(1)


def normal(hidden):
    return functional.layer_norm(hidden, (WIDTH,))


def captured(step):
    """A graph of a step."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()
    return graph


class Server:
    def __init__(self, decoder, replay):
        self.decoder, self.replay, self.served = decoder, replay, 0

    def requests(self, count, pause):
        """Requests one by one, each of which arrives as soon as its pause is over."""
        told = Told()
        for _ in range(count):
            time.sleep(pause)
            self.answer(time.perf_counter(), told)
        return told.values()

    def serve(self, seconds, seed, rate):
        told, gaps = Told(), random.Random(seed)
        begin = time.perf_counter()
        due = begin + gaps.expovariate(rate)
        while due < begin + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            self.answer(due, told)
            due += gaps.expovariate(rate)
        return told.values()

    def answer(self, arrival, told):
        prompt = self.served % PROMPTS
        self.served += 1
        tokens, ends = [], []
        begin = time.perf_counter()
        self.decoder.begin(prompt)
        for _ in range(TOKENS):
            self.replay()
            tokens.append(self.decoder.token.item())
            ends.append(time.perf_counter())
        told.add(prompt, tokens, arrival, begin, ends)


class Told:
    """What is told of the requests of one order."""

    def __init__(self):
        self.seconds, self.from_arrival, self.from_service, self.later, self.checksums = [], [], [], [], {}

    def add(self, prompt, tokens, arrival, begin, ends):
        self.seconds.append(round(ends[-1] - begin, DIGITS))
        self.from_arrival.append(round(ends[0] - arrival, DIGITS))
        self.from_service.append(round(ends[0] - begin, DIGITS))
        self.later += [round(after - before, DIGITS) for before, after in zip(ends, ends[1:])]
        self.checksums.setdefault(prompt, set()).add(zlib.crc32(repr(tokens).encode()))

    def values(self):
        checksums = {prompt: sorted(sums) for prompt, sums in self.checksums.items()}
        return vars(self) | {"requests": len(self.seconds), "checksums": checksums}


@torch.inference_mode()
def main():
    decoder = Decoder("cuda")
    with sdpa_kernel(ATTENTION):
        graph = captured(decoder.step)
    server = Server(decoder, graph.replay)
    server.requests(PROMPTS, 0.0)
    say(ready=True, parameters=decoder.parameters(), reserved_mib=torch.cuda.memory_reserved() >> 20)
    for word, *values in orders():
        if word == "requests":
            said = server.requests(int(values[0]), float(values[1]))
        elif word == "serve":
            said = server.serve(float(values[0]), int(values[1]), float(values[2]))
        else:
            raise SystemExit(f"{word}: expected `requests COUNT SECONDS` or `serve SECONDS SEED RATE`")
        say(**said)


if __name__ == "__main__":
    main()

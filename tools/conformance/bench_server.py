#!/usr/bin/env python3
"""Speed of a server that speaks the OpenAI protocol: total tokens a second and time to first token at 1, 4 and 8 streams, and the
time to first token of a conversation's second turn. Python's own library only.

    bench_server.py http://127.0.0.1:8000 [--streams 1,4,8] [--prompt-words 100] [--max-tokens 128] [--rounds 3] [--model NAME] [--pid PID]

With --pid the processor time of the server is told, too: on a machine that others use, tokens per second of it say more than the clock.

Every round asks questions of its own, so that no round finds the last one's keys and values. Numbers are the best and the median of
the rounds."""
import argparse, asyncio, json, os, random, statistics, time, urllib.parse

WORDS = ("river stone light carries small boats under old bridges while children count the red leaves that fall on slow water and "
         "a dog waits near the mill for bread salt wind night morning paper garden window").split()


def text(words, seed):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(words))


async def ask(url, body):
    """Time to the first piece of text, time of the last, tokens, text."""
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    data = json.dumps(body).encode()
    start = time.perf_counter()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(data) + data)
    await writer.drain()
    first = last = None
    n, pieces, usage = 0, [], None
    status = await reader.readline()
    if b" 200 " not in status:
        raise SystemExit((status + await reader.read(2000)).decode())
    while True:
        line = await reader.readline()
        if not line:
            break
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if event.get("usage"):
            usage = event["usage"]
        for choice in event["choices"]:
            piece = choice["delta"].get("content")
            if piece:
                last = time.perf_counter()
                first = first or last
                pieces.append(piece)
                n += 1
    writer.close()
    return {"first": first - start, "end": last - start, "n": usage["completion_tokens"] if usage else n, "text": "".join(pieces),
            "prompt": usage["prompt_tokens"] if usage else None}


def cpu(args):
    """Seconds of processor time that the server has used; 0 where none is watched."""
    if not args.pid:
        return 0
    with open(f"/proc/{args.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(messages, args):
    body = {"messages": messages, "max_tokens": args.max_tokens, "temperature": 0, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    if args.model:
        body["model"] = args.model
    return body


async def streams(url, n, args, seed):
    bodies = [request([{"role": "user", "content": text(args.prompt_words, seed * 1000 + i)}], args) for i in range(n)]
    start, start_cpu = time.perf_counter(), cpu(args)
    answers = await asyncio.gather(*(ask(url, b) for b in bodies))
    wall, used = time.perf_counter() - start, cpu(args) - start_cpu
    # Decoding by itself: from when every stream has begun to when the first ends.
    return {"tok_s": sum(a["n"] for a in answers) / wall, "ttft": statistics.mean(a["first"] for a in answers),
            "decode_tok_s": sum((a["n"] - 1) / (a["end"] - a["first"]) for a in answers if a["n"] > 1), "prompt": answers[0]["prompt"],
            "tok_cpu_s": sum(a["n"] for a in answers) / used if used else 0}


async def second_turn(url, args, seed):
    messages = [{"role": "user", "content": text(args.turn_words, seed * 7919)}]
    short = argparse.Namespace(**{**vars(args), "max_tokens": 32})
    one = await ask(url, request(messages, short))
    messages += [{"role": "assistant", "content": one["text"]}, {"role": "user", "content": "And then?"}]
    await asyncio.sleep(args.think)
    two = await ask(url, request(messages, short))
    return {"first_turn": one["first"], "second_turn": two["first"], "ratio": two["first"] / one["first"], "prompt": one["prompt"]}


async def main():
    p = argparse.ArgumentParser()
    p.add_argument("url")
    p.add_argument("--streams", default="1,4,8")
    p.add_argument("--prompt-words", type=int, default=100)
    p.add_argument("--turn-words", type=int, default=900)
    p.add_argument("--max-tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--think", type=float, default=1.0, help="seconds between the turns")
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--model")
    p.add_argument("--pid", type=int, help="of the server: its processor time is told")
    p.add_argument("--no-turns", action="store_true")
    args = p.parse_args()
    url = urllib.parse.urlparse(args.url)
    await streams(url, 1, argparse.Namespace(**{**vars(args), "max_tokens": 8}), 1)
    for n in map(int, args.streams.split(",")):
        rounds = [await streams(url, n, args, args.seed + r) for r in range(args.rounds)]
        best = lambda key, f: f(r[key] for r in rounds)
        print(json.dumps({"streams": n, "prompt_tokens": rounds[0]["prompt"], "tok_s": round(best("tok_s", max), 1),
                          "tok_s_median": round(best("tok_s", statistics.median), 1), "decode_tok_s": round(best("decode_tok_s", max), 1),
                          "ttft_s": round(best("ttft", min), 4), "ttft_s_median": round(best("ttft", statistics.median), 4),
                          **({"tok_cpu_s": round(best("tok_cpu_s", max), 1)} if args.pid else {})}), flush=True)
    if not args.no_turns:
        turns = [await second_turn(url, args, args.seed + r) for r in range(args.rounds)]
        print(json.dumps({"first_turn_s": round(min(t["first_turn"] for t in turns), 4), "second_turn_s": round(min(t["second_turn"] for t in turns), 4),
                          "ratio": round(statistics.median(t["ratio"] for t in turns), 4), "prompt_tokens": turns[0]["prompt"]}), flush=True)


asyncio.run(main())

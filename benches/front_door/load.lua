-- What wrk sends: wrk ... -s load.lua URL -- CASE [stream] [limited] [print], where CASE is small, big_repeat, big_turn or big_new; stream asks for
-- the answer piece by piece, limited for one token of it, and print shows a body first.
-- It prints one line: requests a second, the median in microseconds, and how many requests failed.

local words = {}
for word in ([[the router asks every worker for what it holds of a prompt and sends the request to where most of it has been
  computed before while others wait for their turn in a queue that is short enough to be worth its wait]]):gmatch("%S+") do
  words[#words + 1] = word
end

-- Text of about `bytes` bytes, the same for the same seed, of numbers and words, so that it is not one pattern repeated.
local function prose(bytes, seed)
  local state, parts, length = seed, {}, 0
  while length < bytes do
    state = (state * 16807) % 2147483647
    local word = words[state % #words + 1]
    if state % 11 == 0 then word = tostring(state % 9973) end
    parts[#parts + 1] = word
    length = length + #word + 1
  end
  return table.concat(parts, " ")
end

local function message(role, text) return '{"role":"' .. role .. '","content":"' .. text .. '"}' end

local case, streams, limited, thread_number, count
local history, texts = nil, {}

function setup(thread)
  thread_number = (thread_number or 0) + 1
  thread:set("number", thread_number)
end

function init(args)
  case, count = args[1] or "small", 0
  local asked = {}
  for i = 2, #args do asked[args[i]] = true end
  streams, limited = asked.stream, asked.limited
  local turns = {}
  for turn = 1, 10 do
    texts[turn] = prose(5000, 7 * turn)
    turns[turn] = message(turn % 2 == 1 and "user" or "assistant", texts[turn])
  end
  history = table.concat(turns, ",")
  -- Numbers that no run before this one has used.
  math.randomseed(os.time() + 7919 * (number or 0))
  count = math.random(1, 1000000) * 1000
  wrk.method = "POST"
  wrk.headers["content-type"] = "application/json"
  if asked.print then print("BODY " .. body()) end
end

function body()
  count = count + 1
  local flag = streams and '{"stream":true,' or '{"stream":false,'
  local head = flag .. (limited and '"max_tokens":1,' or '') .. '"model":"bench","messages":['
  if case == "small" then return head .. message("user", "Hi there") .. "]}" end
  if case == "big_repeat" then return head .. history .. "," .. message("user", "And then?") .. "]}" end
  if case == "big_turn" then
    return head .. history .. "," .. message("user", "And then, number " .. count .. "?") .. "]}"
  end
  local turns = {}
  for turn = 1, 10 do
    turns[turn] = message(turn % 2 == 1 and "user" or "assistant", count .. " " .. texts[turn])
  end
  return head .. table.concat(turns, ",") .. "," .. message("user", "And then, number " .. count .. "?") .. "]}"
end

function request() return wrk.format(nil, nil, nil, body()) end

function done(summary, latency)
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status
    + summary.errors.timeout
  io.write(string.format("LOAD %.1f %.1f %d\n", summary.requests / (summary.duration / 1e6), latency:percentile(50), failed))
end

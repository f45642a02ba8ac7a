"""The strings that text_goldens.py tokenises: scripts, emoji, code, control characters, spaces."""

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Don't you think it'll work? I'd say we've got it; they're sure he's right, I'm not.",
    "DON'T SHOUT, IT'S LATE. I'LL GO, YOU'RE OK, WE'VE SAID SO, I'D RATHER, I'M OUT.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Portez ce vieux whisky au juge blond qui fume. L'œuvre naïve où ça gêne.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba?",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п'яне.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ἐν ἀρχῇ ἦν ὁ λόγος.",
    "עטלף אבק נס דרך מזגן שהתפוצץ כי חם. שָׁלוֹם עֲלֵיכֶם",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. السَّلَامُ عَلَيْكُمْ ١٢٣",
    "بر آن روز که گفت: می‌خواهم ۴۵۶ کتاب",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३४",
    "আমি বাংলায় গান গাই। ৯৮৭",
    "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது",
    "నేను తెలుగు మాట్లాడతాను", "ਮੈਂ ਪੰਜਾਬੀ ਬੋਲਦਾ ਹਾਂ", "ಕನ್ನಡ ಗೊತ್ತಿಲ್ಲ", "മലയാളം അറിയാം",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓", "ຂ້ອຍເວົ້າພາສາລາວ", "ကျွန်တော် မြန်မာစကား ပြောတယ်",
    "ខ្ញុំនិយាយភាសាខ្មែរ", "བོད་སྐད་", "ქართული ენა მშვენიერია", "Հայերեն լեզուն գեղեցիկ է",
    "አማርኛ ቋንቋ ነው።", "ᠮᠣᠩᠭᠣᠯ ᠬᠡᠯᠡ", "ꦧꦱꦗꦮ", "ᚠᚢᚦᚨᚱᚲ", "𐌲𐌿𐍄𐌹𐍃𐌺", "𓀀𓀁𓂀", "ⰳⰾⰰⰳⱁⰾⰹⱌⰰ",
    "我能吞下玻璃而不伤身体。", "我能吞下玻璃而不傷身體,123456年。", "龘靐齉爩鬱𠀀𠮷𪚥",
    "色は匂へど散りぬるを我が世誰ぞ常ならむ", "いろはにほへと ちりぬるを ワカヨタレソ ﾂﾈﾅﾗﾑ",
    "日本語とEnglishと中文混ざりtext。", "키스의 고유조건은 입술끼리 만나야 하고", "각 각 ᄒᆞᆫ글",
    "Tôi có thể ăn thủy tinh mà không hại gì. Ðường phố Hà Nội",
    "Iñtërnâtiônàlizætiøn ﬁﬂﬃ ĲĳǄǅ ŉ ſt İıIi ẞß",
]

EMOJI = [
    "🦊", "😀😃😄", "👍🏽", "👩‍💻 👨‍👩‍👧‍👦", "🏳️‍🌈🏴‍☠️", "🇩🇪🇫🇷🇯🇵", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "❤️ ❤ ☺️", "1️⃣2️⃣#️⃣",
    "a🦊b🦊c", "🧑🏿‍🤝‍🧑🏻", "🫠🫡🪿🩷", "©®™ ☃ ♠♥♦♣ ⚠️", "♔♕♖ ⠓⠑⠇⠇⠕ ▁▂▃▄▅▆▇█",
]

MARKS = [
    "e\u0301 \u00e9 E\u0301", "a\u0308\u0304\u0323b", "Z\u0351\u0343\u035aa\u0315l\u0321g\u0322o\u0489",
    "\u0301", " \u0301x", "क\u094d\u0937\u093f", "n\u0303 \u00f1 \u0144\u0303", "\u1100\u1161\u11a8",
    "A\u030a \u00c5 \u212b", "\ufb01 \u2126 \u00b5\u03bc", "x\u200by \u200c\u200d\u2060 \ufeff z",
    "\u202eabc\u202c \u2066x\u2069", "a\u034fb \u00adc\u00ad", "\uff21\uff42\uff11 \uff5cUser\uff5c \u2581x\u2581",
]

SPACES = [
    "", " ", "  ", "   ", "    x", "x    ", "a  b   c    d", "\t", "\t\t", " \t ", "\ta\tb", "\n", "\n\n", "\n\n\n",
    " \n", "\n ", " \n \n ", "a\n", "a \n", "a\n b", "a\n\n  b", "\r", "\r\n", "\r\n\r\n", "a\r\nb\rc\n\rd",
    "x \r\n  y", "\u00a0", "a\u00a0b", "\u2003\u2003x", "\u3000\u4f60\u3000", "\u2028a\u2029b", "\u0085x\u0085",
    "\x0b\x0c", " \x1c \x1d\x1e\x1f ", "trailing   ", "   leading", "   both   ", "a \n\n \t\n b", ".\n\n", "!\r\n", "?  \n",
    " " * 17, " " * 64 + "x", "\n" * 33, "\t" * 20 + "x", "x" + " " * 129, " \n" * 20,
]

NUMBERS = [
    "0", "1 2 3", "12", "123", "1234", "12345", "123456", "1234567890", "3.14159265358979", "1,234,567.89", "-42", "+1",
    "1e-10", "0x1F", "0b1010", "2026-11-29T23:49:00Z", "10:30 AM", "$5.99", "100%", "1/2 ½ ²³ x₂", "№5 Ⅷ ⑨ 〇一二三",
    "٠١٢٣٤٥", "०१२३", "１２３４", "𝟏𝟐𝟑", "1st 2nd", "v1.2.3-rc4", "192.168.0.1", "+49 (0)30 123456", "a1b22c333d4444",
]

CODE = [
    "def f(x):\n    return x ** 2  # square\n\n\nclass A(B):\n\tpass\n",
    "fn main() {\n    let v: Vec<u8> = vec![0; 10];\n    println!(\"{v:?}\");\n}\n",
    "#include <stdio.h>\nint main(void){for(int i=0;i<10;++i)printf(\"%d\\n\",i);return 0;}",
    "const f = async (a, b = {}) => ({...a, [`k_${b?.id ?? 0}`]: await g()});",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x >= 3.5 AND name LIKE '%o''k%' GROUP BY 1;",
    "<div class=\"a b\" style='x:1'>&nbsp;&lt;p&gt;</div><!-- c -->",
    "{\"a\": [1, 2.5e3, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}",
    "if [[ -f \"$1\" ]]; then echo ${x:-y} | sed 's/a/b/g' >> out.txt 2>&1; fi",
    "\\begin{align} x &= \\frac{a}{b} \\\\ \\sum_{i=0}^{n} i^2 \\end{align}",
    "# Title\n\n* item **bold** _it_\n  1. `code`\n\n> quote\n\n```rust\nlet x = 1;\n```\n\n| a | b |\n|---|:-:|\n",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case dot.path a->b a::b a==b a!=b a<=b a&&b a||b",
    "https://user:pw@example.com:8080/a/b.html?q=1&r=%20x#frag", "me.and+you@example.co.uk", "C:\\Users\\x\\y.txt",
    "/usr/local/lib/python3.11/site-packages", "@decorator #hashtag $var %ENV% ^caret ~tilde `tick`",
    "!!! ??? ... --- === *** /// \\\\\\ ||| ___ ::: ;;; ,,, \"\"\" ''' ``` ((())) [[]] {{}} <<>>",
    "a=b+c-d*e/f%g^h&i|j~k!l?m:n;o,p.q", "    \"key\": \"value\",\n    \"other\": 1\n", "\t\tif (x) {\n\t\t\treturn;\n\t\t}\n",
    "0123 4567 89AB CDEF", "deadbeefcafebabe", "aGVsbG8gd29ybGQ=", "M4A1-S | AK-47", "x'y''z\"\"", "it''s 's 't 'RE 'LL'd",
    "std::vector<std::pair<int, std::string>>", "λ x . x → ∀∃∈∉⊂⊆∪∩ ≤≥≠≈ ∞∂∇∫√ ±×÷ ℝℂℕ", "x̂ + ŷ = ẑ",
    "。、！？：；“”‘’（）【】《》…——", "¡¿«»‹›„“”‚‘’–—…•·†‡§¶", "，你好！ 再见。\n下一行",
]

CONTROL = [
    "\x00", "a\x00b", "\x00\x00\x00", "\x01\x02\x03", "\x07\x08\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f", "\ufffd",
    "\ufffd\ufffd lone \ufffd", "\ufffe\uffff", "\ue000\uf8ff", "\U0010ffff", "\U000e0001\U000e0041", "\ufff9x\ufffa",
]

MARKERS = [
    "<|endoftext|>", "a<|endoftext|>b", " <|im_start|>user\nhi<|im_end|>\n", "<|im_end|><|im_end|>", "<|im_end",
    "<think>\nx\n</think>\n\ny", "</think>", "<tool_call>\n{}\n</tool_call>", "<|user|>\nhi\n<|assistant|>\n",
    "[gMASK]<sop><|system|>s<|user|>u<|assistant|>", "<|begin_of_text|>", "<s>a</s>", "[INST] x [/INST]", "|||IP_ADDRESS|||",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>S<\uff5cUser\uff5c>u<\uff5cAssistant\uff5c></think>a<\uff5cend\u2581of\u2581sentence\uff5c>",
    "\uff5cDSML\uff5c", "<\uff5cDSML\uff5cinvoke name=\"f\">", "<\uff5cUser\uff5c", "[BOS][EOS][PAD]", "<|open|>message role=\"user\"<|sep|>x<|close|>",
    "<|end_of_msg|>", "<|im_user|>user<|im_middle|>x<|im_end|>", "<|message_user|><|content_text|>x<|end_message|>",
    "<|content_model_end_sampling|>", "<|reserved_token_163600|>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "<tool_response>", "<arg_key>k</arg_key>", "<|padding|>", "<|vision_start|><|image_pad|><|vision_end|>", "<|x|>", "< |im_end| >",
    "<|im_end|>\n\n", "\n<|im_end|>", " <think> ", "x<think>y", "<think><think></think></think>",
]

WORDS = [
    "antidisestablishmentarianism", "Donaudampfschifffahrtsgesellschaftskapitän", "supercalifragilistic",
    "hello", " hello", "Hello", " Hello", "HELLO", " HELLO", "hElLo", "hello,", "hello.", "(hello)", "'hello'", "\"hello\"",
    "hello\n", "\nhello", "hello world", "hello  world", "helloworld", "HelloWorld", "helloWorld2", "hello_world",
    "tokenization", "tokenisation", "untokenizable", "co-operate", "naïve café", "Ångström", "O'Neill", "rock'n'roll", "y'all'd've",
    "ſ's'ſ", "I'M'm 'S'ſ", "Straße STRASSE", "ǅungla", "xAI AIx aBCd ABcd ABCd", "iPhone eBay LaTeX", "JSONParser parseJSON XMLHttpRequest2",
    "aaaa", "aaaaaaaa", "abababab", "zzzzzzzzzzzzzzzz", "hahahahahaha", "......", "-----", "=====", "#####", "~~~~", "*****", "_____",
    "lol\U0001f602\U0001f602\U0001f602", "ok\u2026", "\u201cquoted\u201d", "100\u20ac", "5\u00b0C", "10\u00d710", "A\u0391\u0410", "\u0130stanbul \u0131s\u0131",
]

# Runs: a text and how often.
RUNS = [
    ("a", 1000), ("ab", 500), (" ", 1000), ("\n", 700), ("=", 900), ("0", 500), ("\u4f60", 400), ("\U0001f98a", 200),
    ("\u00e9", 500), ("e\u0301", 300), ("aA", 400), ("<think>", 50), (" a", 400), ("\x00", 300), ("\u0e01", 300), ("'s", 200),
    ("lorem ipsum ", 100), ("\t \n", 100), ("1a", 200), ("!\n", 150),
]

# Longer than what any part of a tokenizer takes at once; too long to be stored.
LONG_RUNS = [("a", 60000), (" ", 60000), ("ab ", 30000), ("\u4f60", 30000), ("=", 100001), ("x\n", 30000), ("\U0001f98a", 20000)]


def strings():
    """Every string once."""
    groups = [SENTENCES, EMOJI, MARKS, SPACES, NUMBERS, CODE, CONTROL, MARKERS, WORDS]
    listed = [text for group in groups for text in group]
    pairs = [f"{a}{b}" for a in ("x", "\u4f60", "5", "!", "\n", " ", "\u0301", "\U0001f98a") for b in ("X", "\u597d", "7", "?", "\n", "  ")]
    return list(dict.fromkeys(listed + pairs + [text * count for text, count in RUNS]))

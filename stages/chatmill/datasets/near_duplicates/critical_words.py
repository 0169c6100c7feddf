"""Words that may turn what a text says, and words that are no names though a sentence begins with them.

The lists are English, with the commonest negations of some other languages in Latin letters.
"""

_NEGATIONS = """
no not never none nothing nobody nowhere neither nor cannot without hardly barely scarcely dont doesnt didnt wont cant
isnt arent wasnt werent shouldnt wouldnt couldnt havent hasnt nope nah unless except instead nicht
kein keine keinen nie niemals ohne ne pas jamais sans nunca sin non mai senza nao sem niet geen не нет ни никогда без
"""
_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred hundreds thousand thousands million
millions billion billions trillion trillions first second third fourth fifth sixth seventh eighth ninth tenth eleventh
twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth thirtieth fortieth
fiftieth sixtieth seventieth eightieth ninetieth hundredth thousandth millionth thirds fourths fifths tenths half halves
quarter quarters dozen dozens once twice thrice double triple single
"""
_NO_NAMES = """
i a about absolutely according actually add after again ah all almost alright also although always am among an and
another any anything anyway are as ask at avoid based basically because before being besides best between both bring
but by bye can categorize certainly choose classify come common compare congratulations consider cool could create
currently dad dear definitely depending describe despite did discuss do does don due during each either enjoy even
eventually every everybody everyone everything exactly examples excellent excuse explain extract fewer finally find
fine firstly following for from further furthermore generally generate get getting give given go going good goodbye
great guess had has have having he hello help her here hers hey hi his how however hurry if imagine in include indeed
initially is isn it its just keep know later let like list listen look looking looks make many may maybe me meanwhile
mine moreover more most much must my name new next nice now of often oh ok okay on only open or other others otherwise
our out over overall pardon people perhaps please pretty prior probably provide put quite rather read really remember
right say see shall she should show similarly since sir so some somebody someone something sometimes sorry start stay
still stop such suggest summarize sure surely take talk tell thank thanks that the their them then there therefore
these they think this those though through throughout thus to today together tomorrow tonight too try turn typically
uh um under unfortunately unlike until upon us use using usually very wait want was watch we welcome well were what
whatever when where whether which while who whoa whom whose why will with within wonderful would wow write yeah yep
yes yesterday yet you your yours
"""

_ALTERNATIVES = """
hot warm cool cold | big large small little tiny huge | tall short | long short | high low | higher lower | up down |
left right | before after | more less fewer | most least | increase decrease | increases decreases |
increased decreased | rise fall | rises falls | open close closed shut | opens closes | start stop end begin |
starts stops ends begins | first last | always often sometimes rarely | all some few many every several | true false |
right wrong | correct wrong incorrect | good bad | better worse | best worst | safe unsafe | dangerous safe |
easy hard difficult | fast slow | faster slower | longer shorter | old young new | older younger | early late |
earlier later | yes no | in out | inside outside | on off | above below | over under | near far | light dark |
light heavy | wet dry | full empty | rich poor | cheap expensive | strong weak | stronger weaker | win lose |
wins loses | won lost | buy sell | bought sold | buys sells | give take | gave took | love like hate dislike |
loves likes hates | loved liked hated | accept refuse reject | accepted refused rejected | allow forbid |
allowed forbidden | add remove subtract | plus minus times | multiply divide |
red blue green yellow black white brown orange purple pink grey gray | day night | morning afternoon evening night |
man woman | men women | boy girl | boys girls | he she | him her | his her | his hers | father mother | dad mom |
brother sister | son daughter | husband wife | male female | king queen | alive dead | positive negative |
maximum minimum | import export | north south east west | with without | for against | to from | even odd |
minimize maximize | gain lose | pass fail | passed failed | spring summer autumn winter | came went | come go |
push pull | can must may should might | will may might would | is was | are were | today tomorrow yesterday tonight |
ever never | happy sad | clean dirty | healthy sick | legal illegal | sunny rainy snowy cloudy |
sweet sour bitter salty | agree disagree | arrive leave | ask answer | borrow lend | teach learn | parent child |
teacher student | breakfast lunch dinner | second minute hour day week month year |
seconds minutes hours days weeks months years | who when where why how | success failure | succeed fail |
succeeds fails | succeeded failed | guilty innocent | approve deny decline | approved denied declined rejected |
improve worsen | improves worsens | improved worsened | cause prevent | causes prevents | caused prevented |
build destroy | built destroyed | create destroy | created destroyed | expensive affordable cheap | thick thin |
deep shallow | wide narrow | heavy light | loud quiet | noisy quiet | brave afraid | calm nervous | lazy busy |
remember forget | remembered forgot forgotten | find lose | found lost | arrive depart | arrived left | enter leave |
hire fire | hired fired | praise blame | help hurt | heal harm | attack defend | defend prosecute | hope fear |
true fake false | real fake | public private | same different opposite | similar different | together apart |
inner outer | upper lower | north south | guest host | profit loss | asset debt | debit credit | income expense |
include exclude | includes excludes | included excluded | mandatory optional | required optional |
necessary optional | permanent temporary | ancient modern | simple complex complicated | single married divorced |
tomorrow now later | now later never | vegetarian vegan meat | solid liquid gas | sunny cloudy | bright dark dim |
sharp blunt dull | smooth rough | soft hard | tight loose | friend enemy | victory defeat | war peace | birth death |
born died | lived died | hero villain | heaven hell | ceiling floor | top bottom | front back rear |
beginning ending end | forward backward | forwards backwards | clockwise anticlockwise counterclockwise |
horizontal vertical | horizontally vertically | quickly slowly | fast slowly | early lately |
rarely frequently often seldom | likely unlikely | probably certainly | safely dangerously | easily hardly |
well badly poorly | agree refuse | receive send | received sent | lend borrow | login logout | encrypt decrypt |
compress expand | freeze melt boil | frozen melted | awake asleep | hungry full thirsty | single double triple |
left stayed | enabled disabled | enable disable | active inactive passive | tea coffee water milk juice wine beer |
cat dog bird fish horse | car bus train plane bike | gold silver bronze | acid base | protons electrons neutrons |
uncle aunt | nephew niece | grandfather grandmother | prince princess | mr mrs ms | actor actress | waiter waitress |
bride groom | sir madam | monday tuesday wednesday thursday friday saturday sunday |
january february march april may june july august september october november december |
positive negative neutral | entailment contradiction neutral | ascending descending | encode decode |
mm cm m km | inch foot yard mile meter kilometer centimeter | inch foot yard mile metre kilometre centimetre |
inches feet yards miles meters kilometers centimeters millimeters |
inches feet yards miles metres kilometres centimetres millimetres | mcg mg g kg oz lb |
micrograms milligrams grams kilograms ounces pounds tons | ml cl l | milliliters liters gallons pints cups |
millilitres litres gallons pints cups | tsp tbsp | teaspoons tablespoons cups | teaspoon tablespoon cup |
dollars euros pounds yen cents | celsius fahrenheit kelvin | bits bytes | kb mb gb tb | ms s min h
"""
NEGATIONS = frozenset(_NEGATIONS.split())
NUMBER_WORDS = frozenset(_NUMBERS.split())
NO_NAMES = frozenset(_NO_NAMES.split())
_GROUPS = [frozenset(group.split()) for group in _ALTERNATIVES.split("|")]
ALTERNATIVES = {
    word: frozenset().union(*(group for group in _GROUPS if word in group)) - {word}
    for word in frozenset().union(*_GROUPS)
}
